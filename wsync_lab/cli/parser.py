"""The commands and their options. Heavy modules are imported only by the command that runs."""

import argparse
from typing import NoReturn

from wsync_lab import __version__
from wsync_lab.cli import bench, doctor, report, run, sandbox
from wsync_lab.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as ``ConfigError``, so on one line as every other error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (`{self.prog} --help` shows an example)")


def build_parser() -> Parser:
    parser = Parser(
        prog="wsync",
        description="Measure weight sync: notebooks, benchmarks, reports.",
        epilog="example: wsync run notebooks/00_environment.ipynb --report",
    )
    parser.add_argument("--version", action="version", version=f"wsync_lab {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for command in (run, bench, report, doctor, sandbox):
        command.add_to(commands)
    return parser
