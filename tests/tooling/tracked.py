"""The files that belong to the project: tracked by git, or new and not ignored."""

import subprocess
from pathlib import Path

from tests.tooling.imports import ROOT


def project_files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
