"""The README shows what the records say, and nothing else."""

import pytest

from tests.reports.made_records import step_record
from wsync_lab.errors import ConfigError
from wsync_lab.records import append, project_folder
from wsync_lab.reports.readme import current_table, with_table
from wsync_lab.tables.known import known_table
from wsync_lab.tables.published import read_published

ROLL = read_published()["alibaba/ROLL#485"]


def test_the_readme_is_up_to_date() -> None:
    """`make readme` writes it again."""
    text = (project_folder() / "README.md").read_text()
    assert with_table(text, current_table()) == text


def test_a_record_is_a_row_beside_the_published_one(tmp_path) -> None:
    append(tmp_path / "host.jsonl", step_record("pinned"))
    append(tmp_path / "host.jsonl", step_record("cpu", error="PeerLost: gone"))
    lines = known_table(tmp_path, ROLL).splitlines()
    assert len(lines) == 4
    assert "103" in lines[2]
    assert "17%" in lines[2]
    assert "pinned (memfd)" in lines[3]
    assert "[host](data/raw/host.jsonl)" in lines[3]


def test_a_readme_without_its_marks_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="0 generated blocks"):
        with_table("# no marks\n", "| a |")
