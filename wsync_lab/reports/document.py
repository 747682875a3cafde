"""What a report shows, taken from an executed notebook by the tags of its cells.

``verdict``, ``summary`` and ``provenance`` mark the cells whose Markdown goes to the head of the
report; ``figure`` marks a cell that shows exactly one figure.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_output

from wsync_lab.errors import ConfigError

Notebook = Any  # nbformat.NotebookNode: a dictionary with attributes
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")


@dataclass(frozen=True)
class Document:
    """A report before it is rendered; ``verdict``, ``summary`` and ``provenance`` are Markdown."""

    title: str
    verdict: str
    ok: bool
    summary: str
    provenance: str
    body: Notebook
    num_figures: int


def read_executed(path: Path) -> Notebook:
    """The notebook of ``path``, which must have been executed to its end.

    Raises:
        ConfigError: it is no notebook, was not executed, or stopped at an error.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, nbformat.ValidationError, nbformat.reader.NotJSONError) as error:
        raise ConfigError(f"{path} is no notebook: {str(error).splitlines()[0]}") from None
    for problem in unfinished(notebook):
        raise ConfigError(f"{path} {problem}: run it to its end with `wsync run` first")
    return notebook


def document_of(notebook: Notebook) -> Document:
    """Take the report's parts out of an executed notebook."""
    num_figures = sum(map(_checked_figure, _tagged(notebook, "figure")))
    verdict = _output(notebook, "verdict")
    return Document(
        title=_title(notebook),
        verdict=_markdown(verdict),
        ok=bool(verdict.get("metadata", {}).get("wsync", {}).get("ok", True)),
        summary=_markdown(_output(notebook, "summary")),
        provenance=_markdown(_output(notebook, "provenance")),
        body=_body(notebook),
        num_figures=num_figures,
    )


def unfinished(notebook: Notebook) -> Iterator[str]:
    """What shows that ``notebook`` did not run to its end; a ``sys.exit()`` in a cell counts."""
    for cell in notebook.cells:
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if any(output.output_type == "error" for output in cell.outputs):
            yield f"stopped at an error in cell In [{cell.execution_count}]"
        if cell.execution_count is None:
            yield "has cells that were not executed"


def _title(notebook: Notebook) -> str:
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return str(cell.source.splitlines()[0][2:].strip())
    raise ConfigError("the notebook has no title: start its first cell with `# `")


def _body(notebook: Notebook) -> Notebook:
    """The notebook without what the head of the report shows, and without libraries' logs."""
    body = deepcopy(notebook)
    head = {"provenance", "injected-parameters"}
    body.cells = [cell for cell in body.cells if not head & set(cell.metadata.get("tags", []))]
    for cell in body.cells:
        if cell.cell_type == "code":
            cell.outputs = _one_log(cell.outputs)
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            cell.source = "\n".join(cell.source.splitlines()[1:])
    return body


def _one_log(outputs: list[Any]) -> list[Any]:
    """What a cell printed, in one piece before what it shows; papermill keeps every line apart."""
    shown = [output for output in outputs if output.output_type != "stream"]
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    return [new_output("stream", name="stdout", text=printed), *shown] if printed else shown


def _tagged(notebook: Notebook, tag: str) -> list[Any]:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def _output(notebook: Notebook, tag: str) -> Any:
    """The Markdown output of the one cell with ``tag``."""
    outputs = [output for cell in _tagged(notebook, tag) for output in cell.outputs]
    found = [output for output in outputs if "text/markdown" in output.get("data", {})]
    if len(found) != 1:
        raise ConfigError(f"{len(found)} cells tagged {tag!r} show Markdown: a report needs one")
    return found[0]


def _markdown(output: Any) -> str:
    return str(output["data"]["text/markdown"])


def _checked_figure(cell: Any) -> int:
    images = sum(any(kind in output.get("data", {}) for kind in _IMAGES) for output in cell.outputs)
    if images != 1:
        raise ConfigError(f"the figure cell {cell.id} shows {images} figures instead of one")
    return images
