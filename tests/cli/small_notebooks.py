"""Notebooks of a few cells, written where a test wants them."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = """\
transports = ["cpu", "pinned"]  # compared in this order
num_steps = 6  # training steps
rate = 0.5
engine = "plain"
quick = False
"""


def write_notebook(folder: Path, *cells: str, parameters: str = PARAMETERS, **metadata: object) -> Path:
    """``small.ipynb``: a title, the parameters cell, and ``cells``."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(metadata={"kernelspec": kernel, "wsync": metadata})
    notebook.cells = [
        new_markdown_cell("# Small"),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *map(new_code_cell, cells),
    ]
    path = folder / "small.ipynb"
    nbformat.write(notebook, path)
    return path
