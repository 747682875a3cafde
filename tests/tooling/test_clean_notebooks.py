"""Notebooks are kept without outputs, and the pre-commit hook is what keeps them so."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from tests.tooling.imports import ROOT
from tests.tooling.tracked import project_files

HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
NOTEBOOKS = [path for path in project_files() if path.suffix == ".ipynb"]


def run_hook(*paths: Path) -> None:
    """Run the clean-notebooks hook on ``paths`` with the tools of this environment."""
    program, *options = shlex.split(next(hook["entry"] for hook in HOOKS if hook["id"] == "clean-notebooks"))
    tool = Path(sys.executable).with_name(Path(program).name)
    subprocess.run([tool, *options, *paths], check=True)


@pytest.fixture
def executed(tmp_path):
    """A notebook as Jupyter saves it after a run."""
    code = nbformat.v4.new_code_cell("slot_bytes = 4096", metadata={"tags": ["parameters"]})
    code.execution_count = 7
    code.outputs = [nbformat.v4.new_output("stream", name="stdout", text="4096 bytes\n")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Question"), code])
    path = tmp_path / "executed.ipynb"
    nbformat.write(notebook, path)
    return path


def test_the_hook_removes_outputs_and_keeps_sources_and_tags(executed):
    before = nbformat.read(executed, as_version=4)
    run_hook(executed)
    after = nbformat.read(executed, as_version=4)
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    assert after.cells[1].metadata.tags == ["parameters"]
    assert after.cells[1].outputs == [] and after.cells[1].execution_count is None
    assert [cell.id for cell in after.cells] == [cell.id for cell in before.cells]


def test_the_hook_changes_no_notebook_of_the_project(tmp_path):
    copies = [Path(shutil.copy(path, tmp_path)) for path in NOTEBOOKS]
    run_hook(*copies)
    pairs = zip(NOTEBOOKS, copies, strict=True)
    assert not [path.name for path, copy in pairs if path.read_bytes() != copy.read_bytes()]
