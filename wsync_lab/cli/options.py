"""Options that several commands share."""

import argparse
from pathlib import Path


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """``--output`` and ``--overwrite``, the same for every command that writes files."""
    parser.add_argument(
        "--output", type=Path, default=Path("reports"), metavar="DIR", help="folder for the files (reports)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files of an earlier run")
