"""Reports on disk: both files of a report appear whole, or neither does."""

from pathlib import Path

from wsync_lab.errors import ConfigError
from wsync_lab.reports.document import Document
from wsync_lab.reports.html import render


def report_paths(folder: Path, name: str) -> tuple[Path, Path]:
    """Where the report ``name`` goes: HTML and Markdown."""
    return folder / f"{name}.html", folder / f"{name}.md"


def refuse_occupied(*paths: Path) -> None:
    """Raises ConfigError when one of ``paths`` exists."""
    occupied = ", ".join(str(path) for path in paths if path.exists())
    if occupied:
        raise ConfigError(f"{occupied} exists already: give another --output, or --overwrite")


def make_folder(folder: Path) -> None:
    """Raises ConfigError when ``folder`` cannot be there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder} ({error.strerror}): give another --output") from None


def write_report(document: Document, folder: Path, name: str) -> tuple[Path, Path]:
    """Render ``document`` into ``folder``; files of that name are replaced.

    Raises:
        ReportError: the report is not self-contained or lacks figures; nothing is written.
    """
    texts = (render(document), markdown_report(document))
    paths = report_paths(folder, name)
    make_folder(folder)
    drafts = [path.with_suffix(f"{path.suffix}.part") for path in paths]
    try:
        for draft, text in zip(drafts, texts, strict=True):
            draft.write_text(text, encoding="utf-8")
        for draft, path in zip(drafts, paths, strict=True):
            draft.replace(path)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    return paths


def markdown_report(document: Document) -> str:
    """The report in short, for an issue thread."""
    provenance = f"<details><summary>Provenance</summary>\n\n{document.provenance}\n\n</details>"
    parts = (f"## {document.title}", document.verdict.strip(), document.summary.strip(), provenance)
    return "\n\n".join(parts) + "\n"
