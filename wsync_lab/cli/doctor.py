"""``wsync doctor``: what works on this machine, why, and what to take."""

import argparse
import json
import sys
from typing import Any

_EXAMPLE = """\
examples:
  wsync doctor
  wsync sandbox --profile managed -- wsync doctor --json

Everything is tried, in processes that are thrown away; nothing is guessed from versions. Exit status: 0; 1 if
no transport works here."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say which transports work here, and why",
        description="Try every transport and what it needs, and say what that means.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--transports", metavar="A,B", help="try these alone (default: all)")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from wsync_lab.config import TRANSPORT_NAMES, SyncConfig
    from wsync_lab.doctor.diagnose import diagnose
    from wsync_lab.doctor.machine import examine
    from wsync_lab.doctor.text import as_data, as_text

    names = args.transports.split(",") if args.transports else TRANSPORT_NAMES
    for name in names:
        SyncConfig(name)
    diagnosis = diagnose(examine(names, lambda text: print(f"trying {text}", file=sys.stderr)))
    print(json.dumps(as_data(diagnosis)) if args.json else as_text(diagnosis))
    return int(diagnosis.choice.transport is None)
