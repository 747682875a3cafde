"""The notebooks as committed: clean, thin, and with the parts that a report is made of."""

import ast
from pathlib import Path

import nbformat
import pytest

from wsync_lab.cli.parameters import declared

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MAX_LINES = 15

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def test_there_are_notebooks() -> None:
    assert {"00_environment", "02_step_time_breakdown"} <= {path.stem for path in NOTEBOOKS}


@every_notebook
def test_the_format_is_valid_with_a_readable_id_for_every_cell(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(len(each) < 24 and each == each.lower() for each in ids)


@every_notebook
def test_no_output_is_committed(path: Path) -> None:
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells(path))
    assert set(read(path).metadata) == {"kernelspec", "language_info", "wsync"}


@every_notebook
def test_cells_are_short_and_hold_no_helper_code(path: Path) -> None:
    for cell in code_cells(path):
        assert len(cell.source.splitlines()) <= MAX_LINES, cell.id
        nodes = ast.walk(ast.parse(cell.source))
        assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]


@every_notebook
def test_parameters_are_plain_literals_that_say_what_they_are(path: Path) -> None:
    assert all(parameter.meaning for parameter in declared(read(path)).values())


@every_notebook
def test_it_asks_a_question_expects_an_answer_and_names_its_limits(path: Path) -> None:
    cells = read(path).cells
    assert cells[0].source.startswith("# ")
    assert "**Question.**" in cells[0].source
    assert "**Expected.**" in cells[0].source
    assert cells[-1].source.startswith("## Limits")


@every_notebook
@pytest.mark.parametrize("tag", ["parameters", "provenance", "summary", "verdict"])
def test_a_report_finds_its_parts(path: Path, tag: str) -> None:
    assert len([cell for cell in code_cells(path) if tag in cell.metadata.get("tags", [])]) == 1


@every_notebook
def test_no_measured_number_is_written_into_the_text(path: Path) -> None:
    text = " ".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    units = [word for word in ("GB/s", "%", " ms", " MB") if word in text]
    assert not units
