"""Is what a notebook needs installed? Asked before it runs, since vLLM takes long to say no."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from nbformat import NotebookNode

from wsync_lab.errors import ConfigError

_REMEDY = {
    "vllm": "`make install` sets it up; engine 'plain' does without",
    "ray": "`make install` sets it up",
}


def check_installed(notebook: NotebookNode, values: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first missing package.

    Args:
        values: every parameter of the run. One that is named ``records`` and not empty shows
            existing records, which needs neither vLLM nor Ray.
    """
    for package in () if values.get("records") else _needed(notebook, values):
        if find_spec(package) is None:
            remedy = _REMEDY.get(package, f"`pip install {package}`")
            raise ConfigError(f"this notebook needs {package}, which is not installed: {remedy}")


def _needed(notebook: NotebookNode, values: Mapping[str, Any]) -> Iterator[str]:
    """``requires`` of the notebook's own metadata, and vLLM where it is the chosen engine."""
    yield from notebook.metadata.get("wsync", {}).get("requires", [])
    if values.get("engine") == "vllm":
        yield "vllm"
