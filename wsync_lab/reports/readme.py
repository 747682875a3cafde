"""Write the generated table into README.md: ``python -m wsync_lab.reports.readme``."""

import re

from wsync_lab.errors import ConfigError
from wsync_lab.records import project_folder
from wsync_lab.tables.known import known_table
from wsync_lab.tables.published import read_published

_BLOCK = re.compile(r"(<!-- generated: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


def with_table(text: str, table: str) -> str:
    """``text`` with ``table`` between its two marks.

    Raises:
        ConfigError: the marks are not there exactly once.
    """
    written, found = _BLOCK.subn(lambda marks: f"{marks[1]}\n{table}\n\n{marks[2]}", text)
    if found != 1:
        raise ConfigError(f"README.md has {found} generated blocks instead of one: restore its marks")
    return written


def current_table() -> str:
    """The table of what is under ``data/``."""
    folder = project_folder()
    return known_table(folder / "data" / "raw", read_published()["alibaba/ROLL#485"])


def main() -> None:
    """Rewrite README.md in place."""
    readme = project_folder() / "README.md"
    readme.write_text(with_table(readme.read_text(), current_table()))


if __name__ == "__main__":
    main()
