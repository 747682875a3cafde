"""Every source has an entry and a note, and they agree."""

import re
from pathlib import Path

PAPERS = Path(__file__).parents[2] / "papers"
ENTRIES = dict(
    re.findall(r"^@\w+\{(\w+),(.*?)^\}", (PAPERS / "refs.bib").read_text(), re.MULTILINE | re.DOTALL)
)


def test_every_entry_has_its_note_with_its_address() -> None:
    assert {path.stem for path in (PAPERS / "notes").glob("*.md")} == set(ENTRIES)
    for key, fields in ENTRIES.items():
        address = re.search(r"url\s*= \{(.*)\}", fields)
        assert address, key
        assert f"<{address[1]}>" in (PAPERS / "notes" / f"{key}.md").read_text()


def test_every_note_says_what_it_says_what_we_take_and_what_it_leaves_open() -> None:
    for path in (PAPERS / "notes").glob("*.md"):
        assert re.findall(r"^\*\*(.*?)\*\*", path.read_text(), re.MULTILINE) == [
            "Says.",
            "We take.",
            "Leaves open.",
        ]


def test_the_log_is_dated_newest_first() -> None:
    dates = re.findall(r"^## (\d{4}-\d{2}-\d{2})$", (PAPERS / "log.md").read_text(), re.MULTILINE)
    assert dates
    assert dates == sorted(dates, reverse=True)


def test_every_test_that_a_document_names_exists() -> None:
    root = PAPERS.parent
    named = [
        (match[1], match[2])
        for path in PAPERS.glob("*.md")
        for match in re.finditer(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", path.read_text())
    ]
    assert len(named) > 10
    for path, test in named:
        assert test in (root / path).read_text() if test else (root / path).exists(), (path, test)
