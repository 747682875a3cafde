"""``wsync sandbox``: run a command under the restrictions of a managed container."""

import argparse
from typing import Any

from wsync_lab.sandbox.run import MEANINGS, become

_EXAMPLE = """\
examples:
  wsync sandbox --profile managed -- wsync doctor
  wsync sandbox --profile managed --profile tiny-shm -- make demo

The command and everything that it starts, Ray's workers and vLLM's processes too, are restricted; nothing
lifts that. Exit status: the command's; 2 if a restriction cannot be imposed here, and nothing was run."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "sandbox",
        help="run a command as a managed container would",
        description="Run a command under the restrictions of a managed container.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items())
    parser.add_argument(
        "--profile", action="append", default=[], metavar="NAME", help=f"once or more ({meanings})"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    become(args.profile or ["managed"], command)
    return 0
