"""``wsync run``: execute a notebook with checked parameters, and report it if asked."""

import argparse
from pathlib import Path
from typing import Any

from wsync_lab.cli.options import add_output_options
from wsync_lab.errors import ConfigError

_EXAMPLE = """\
example:
  wsync run notebooks/02_step_time_breakdown.ipynb -p transports cpu,pinned -p num_steps 30 --report

NAME and VALUE are checked against the notebook's `parameters` cell before it runs. A list is written
a,b or [1, 2]. Exit status: 0 done; 1 the notebook failed (NAME.failed.ipynb holds what ran), or its
verdict is that something is wrong; 2 the request cannot be served, and nothing was written."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="execute a notebook with other parameters",
        description="Execute a notebook with other parameters than its defaults.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    parser.add_argument("-p", dest="pairs", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
                        help="set a parameter; may be given several times")  # fmt: skip
    parser.add_argument("--parameters", action="store_true", help="list the notebook's parameters and exit")
    parser.add_argument("--report", action="store_true", help="write the HTML and Markdown report as well")
    add_output_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from wsync_lab.cli.parameters import chosen, declared
    from wsync_lab.cli.requirements import check_installed

    notebook = _open(args.notebook)
    parameters = declared(notebook)
    if args.parameters:
        return _list(parameters)
    values = chosen(parameters, args.pairs)
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    check_installed(notebook, {**defaults, **values})
    return _run(args, values)


def _run(args: argparse.Namespace, values: dict[str, Any]) -> int:
    from wsync_lab.cli.execute import execute as execute_notebook
    from wsync_lab.cli.execute import executed_path, failed_path
    from wsync_lab.cli.report import report_notebook
    from wsync_lab.reports.write import refuse_occupied, report_paths

    name = args.notebook.stem
    reports = report_paths(args.output, name) if args.report else ()
    if not args.overwrite:
        refuse_occupied(executed_path(args.output, name), failed_path(args.output, name), *reports)
    try:
        executed = execute_notebook(args.notebook, args.output, values)
    except ConfigError:
        raise
    except BaseException:
        _remove(executed_path(args.output, name), *reports)  # they would look like this run's
        raise
    _remove(*reports)
    print(f"notebook: {executed}")
    return report_notebook(executed, args.output) if args.report else 0


def _open(path: Path) -> Any:
    import nbformat

    if not path.is_file():
        found = ", ".join(str(each) for each in sorted(Path("notebooks").glob("*.ipynb")))
        raise ConfigError(f"no notebook {path}: choose {found or 'one, from the root of the checkout'}")
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.reader.NotJSONError):
        raise ConfigError(f"{path} is no notebook: give an .ipynb file") from None


def _list(parameters: dict[str, Any]) -> int:
    for parameter in parameters.values():
        print(f"{parameter.name} = {parameter.default!r}  {parameter.meaning}".rstrip())
    return 0


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
