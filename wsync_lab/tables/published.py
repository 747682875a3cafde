"""The figures that other people published, from ``data/published``: what this lab stands beside."""

from pathlib import Path

import msgspec

from wsync_lab.records import RecordError, project_folder


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published number.

    Attributes:
        origin: ``stated`` in the report, whose words are in ``quote``, or ``derived`` from other
            figures of the same report by ``formula``.
    """

    figure: str
    value: float
    unit: str
    meaning: str
    origin: str
    quote: str = ""
    formula: str = ""


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One public report and its figures; ``note`` says what to keep in mind with them."""

    key: str
    title: str
    author: str
    address: str
    date: str
    setup: str
    note: str
    figures: tuple[Figure, ...]

    def value(self, figure: str) -> float:
        """The number published under ``figure``; KeyError where there is none."""
        return {each.figure: each.value for each in self.figures}[figure]


def read_published(folder: Path | None = None) -> dict[str, Report]:
    """Every report of ``data/published``, by key."""
    files = sorted((folder or project_folder() / "data" / "published").glob("*.json"))
    reports = [_read(file) for file in files]
    return {report.key: report for report in reports}


def _read(file: Path) -> Report:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Report)
    except msgspec.DecodeError as error:
        raise RecordError(f"{file}: {error}") from None
