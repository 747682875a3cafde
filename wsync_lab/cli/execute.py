"""Execute a notebook so that a file's name tells whether the run reached its end.

It runs as ``NAME.running.ipynb``, saved after each cell, and becomes ``NAME.ipynb`` at its end
or ``NAME.failed.ipynb`` where it stopped.
"""

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import papermill
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import DeadKernelError
from tqdm import tqdm  # type: ignore[import-untyped]
from traitlets.config import Config

from wsync_lab.errors import ConfigError, WsyncError
from wsync_lab.reports.document import unfinished
from wsync_lab.reports.write import make_folder

_KERNEL = Config(KernelManager=Config(transport="ipc"))  # unix sockets: no port that others can reach
_QUIET = ["--log-level=CRITICAL"]  # the kernel's own log; what a notebook prints is its output
_REFUSALS = ("ConfigError", "RecordError", "TransportUnavailable")  # raised in the notebook's kernel


class NotebookFailed(WsyncError):
    """The notebook stopped before its end; the message says where, why and what is left of it."""


def executed_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.ipynb"


def failed_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.failed.ipynb"


def execute(source: Path, folder: Path, values: Mapping[str, Any]) -> Path:
    """Run ``source`` with ``values`` and return the executed notebook in ``folder``.

    Raises:
        ConfigError: the notebook refused its parameters; nothing is left behind.
        NotebookFailed: a cell failed or the kernel died; the partial notebook is kept.
    """
    make_folder(folder)
    draft = folder / f"{source.stem}.running.ipynb"
    try:
        _run(source, draft, values)
    except ConfigError:
        draft.unlink(missing_ok=True)
        raise
    except BaseException as error:
        raise NotebookFailed(f"{_reason(error)}{_kept(draft, failed_path(folder, source.stem))}") from None
    draft.replace(executed_path(folder, source.stem))
    failed_path(folder, source.stem).unlink(missing_ok=True)
    return executed_path(folder, source.stem)


def _run(source: Path, draft: Path, values: Mapping[str, Any]) -> None:
    bar = {"desc": source.stem, "disable": not sys.stderr.isatty(), "file": sys.stderr}
    options = {
        "progress_bar": bar,
        "stdout_file": _AboveTheBar(),
        "config": _KERNEL,
        "extra_arguments": _QUIET,
    }
    try:
        notebook = papermill.execute_notebook(source, draft, dict(values), **options)
    except papermill.PapermillExecutionError as error:
        if error.ename in _REFUSALS:
            raise ConfigError(error.evalue) from None
        raise
    except NoSuchKernel as error:
        raise ConfigError(f"no Jupyter kernel {error.name!r}: `pip install ipykernel`") from None
    for problem in unfinished(notebook):
        raise NotebookFailed(f"the notebook {problem}")


def _reason(error: BaseException) -> str:
    match error:
        case papermill.PapermillExecutionError():
            return f"cell In [{error.exec_count}] raised {error.ename}: {error.evalue}"
        case DeadKernelError():
            return "the kernel died (killed, or out of memory)"
        case KeyboardInterrupt():
            return "interrupted"
    return str(error)


def _kept(draft: Path, failed: Path) -> str:
    if not draft.exists():
        return ""
    draft.replace(failed)
    return f" (what ran until then: {failed})"


class _AboveTheBar(io.TextIOBase):
    """What the notebook prints, line by line, above the progress bar."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            tqdm.write(line, file=sys.stdout)
        return len(text)
