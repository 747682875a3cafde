"""The command ``wsync``. Exit status: 0 done, 1 it ran and failed, 2 the request cannot be served."""

import sys
from collections.abc import Sequence

from wsync_lab.errors import ConfigError, WsyncError

DONE, FAILED, REFUSED = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what goes wrong is one line on stderr that says what to do."""
    from wsync_lab.cli.parser import build_parser

    try:
        args = build_parser().parse_args(argv)
        status: int = args.execute(args)
    except ConfigError as error:
        return _say(error, REFUSED)
    except ModuleNotFoundError as error:
        return _say(f"{error}: install it with `pip install 'wsync_lab[notebooks]'`", REFUSED)
    except (WsyncError, OSError) as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", FAILED)
    return status


def _say(problem: object, status: int) -> int:
    print(f"wsync: error: {' '.join(str(problem).split())}", file=sys.stderr)
    return status
