"""``wsync report``: one HTML file and Markdown from an executed notebook, or from records."""

import argparse
import sys
from pathlib import Path
from typing import Any

from wsync_lab.cli.options import add_output_options
from wsync_lab.errors import ConfigError

_EXAMPLE = """\
examples:
  wsync report reports/02_step_time_breakdown.ipynb
  wsync report data/raw/step-cpu.jsonl data/raw/step-pinned.jsonl --output reports

The HTML file holds its figures and asks for nothing else; the Markdown is for an issue thread, and is
printed here too. Exit status: 0 done; 1 the report could not be made, or its verdict is that something
is wrong; 2 the request cannot be served, and nothing was written."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="make an HTML and a Markdown report",
        description="Make an HTML and a Markdown report of an executed notebook, or of step records.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", type=Path, nargs="+", metavar="SOURCE",
                        help="an executed .ipynb, or .jsonl files and folders of them")  # fmt: skip
    add_output_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from wsync_lab.reports.write import refuse_occupied, report_paths

    first: Path = args.sources[0]
    if not args.overwrite:
        refuse_occupied(*report_paths(args.output, first.stem))
    if first.suffix == ".ipynb":
        return _report_one(args.sources, args.output)
    return report_records(args.sources, args.output)


def report_notebook(executed: Path, folder: Path) -> int:
    """Write the report of an executed notebook into ``folder`` and print its summary."""
    from wsync_lab.reports.document import document_of, read_executed

    return _write(document_of(read_executed(executed)), folder, executed.stem)


def report_records(paths: list[Path], folder: Path) -> int:
    """Write the report of records into ``folder`` and print its summary."""
    from wsync_lab.records import read
    from wsync_lab.reports.document import document_of
    from wsync_lab.reports.from_records import notebook_of
    from wsync_lab.tables.published import read_published

    title = f"Step-time breakdown: {', '.join(path.stem for path in paths)}"
    notebook = notebook_of(read(*paths), title, read_published()["alibaba/ROLL#485"])
    return _write(document_of(notebook), folder, paths[0].stem)


def _report_one(sources: list[Path], folder: Path) -> int:
    if len(sources) > 1:
        raise ConfigError("one executed notebook makes one report: give them one at a time")
    if not sources[0].is_file():
        raise ConfigError(f"no executed notebook {sources[0]}: make it with `wsync run` first")
    return report_notebook(sources[0], folder)


def _write(document: Any, folder: Path, name: str) -> int:
    from wsync_lab.reports.write import write_report

    html, markdown = write_report(document, folder, name)
    print(f"\n{document.title}\n\n{document.summary}\n\n{_plain(document.verdict)}\n\n{html}\n{markdown}")
    if not document.ok:
        headline = document.verdict.splitlines()[0].strip("*")
        print(f"wsync: error: {headline} (see {html})", file=sys.stderr)
    return 0 if document.ok else 1


def _plain(markdown: str) -> str:
    """Markdown for a terminal: without the marks of bold text."""
    return markdown.replace("**", "").strip()
