"""Write ``cpu.txt``, the CPU lock: every package of ``cpu.in`` and ``cpu-nodeps.in``, pinned.

Versions that are locked already are kept where the inputs still allow them; ``--upgrade`` takes
the newest instead. pip only resolves, nothing is installed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
LOCK = FOLDER / "cpu.txt"
HEADER = """\
# Written by `make lock` from cpu.in and cpu-nodeps.in; edit those instead.
# Install with `pip install --no-deps -r`: see cpu-nodeps.in.
"""


def main() -> None:
    """Resolve and write the lock; an option after ``--`` goes to pip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="ignore the versions locked so far")
    parser.add_argument("pip_options", nargs="*", help="given to pip, such as an extra index")
    arguments = parser.parse_args()
    options = arguments.pip_options
    if LOCK.exists() and not arguments.upgrade:
        options += ["--constraint", str(LOCK)]
    pins = resolve(["-r", str(FOLDER / "cpu.in"), *options])
    pins |= resolve(["--no-deps", "-r", str(FOLDER / "cpu-nodeps.in")])
    LOCK.write_text(HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins)))


def resolve(arguments: list[str]) -> dict[str, str]:
    """Name -> version of what ``pip install`` with these arguments would bring."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        dry_run = ["install", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", *dry_run, *arguments], check=True)
        chosen = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return {canonical(item["name"]): item["version"] for item in chosen}


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main()
