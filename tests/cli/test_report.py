"""``wsync report``: from records and from executed notebooks, or not at all."""

from pathlib import Path

import pytest

from tests.cli.small_notebooks import write_notebook
from tests.cli.test_run import files, the_only_line, wsync
from tests.reports.made_records import step_record
from wsync_lab.records import append

ROOT = Path(__file__).parents[2]


@pytest.fixture
def out(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(ROOT)
    return tmp_path / "out"


def test_records_become_html_markdown_and_a_table_on_the_terminal(tmp_path, out, capsys) -> None:
    for transport in ("cpu", "pinned"):
        append(tmp_path / f"{transport}.jsonl", step_record(transport, seed=5))
    assert wsync("report", tmp_path / "cpu.jsonl", tmp_path / "pinned.jsonl", "--output", out) == 0
    assert files(out) == ["cpu.html", "cpu.md"]
    printed = capsys.readouterr().out
    assert "| cpu " in printed
    assert "| pinned (memfd) " in printed
    assert "as fast as cpu" in printed


def test_a_failed_run_is_reported_as_failed_with_exit_status_1(tmp_path, out, capsys) -> None:
    append(tmp_path / "a.jsonl", step_record("cpu", num_steps=2))
    append(tmp_path / "a.jsonl", step_record("pinned", num_steps=1, error="PeerLost: worker 0 is gone"))
    assert wsync("report", tmp_path / "a.jsonl", "--output", out) == 1
    assert "FAILED after 1 steps: pinned (memfd): `PeerLost: worker 0 is gone`" in the_only_line(capsys)
    html = (out / "a.html").read_text()
    assert 'class="verdict failed"' in html
    assert "pinned (memfd), failed" in html


def test_an_occupied_output_is_left_alone(tmp_path, out, capsys) -> None:
    append(tmp_path / "a.jsonl", step_record("cpu", num_steps=2))
    out.mkdir()
    (out / "a.md").write_text("mine")
    assert wsync("report", tmp_path / "a.jsonl", "--output", out) == 2
    assert "a.md exists already: give another --output, or --overwrite" in the_only_line(capsys)
    assert (out / "a.md").read_text() == "mine"
    assert files(out) == ["a.md"]
    assert wsync("report", tmp_path / "a.jsonl", "--output", out, "--overwrite") == 0


def test_a_notebook_that_was_not_executed_is_refused(tmp_path, out, capsys) -> None:
    assert wsync("report", write_notebook(tmp_path, "1 + 1"), "--output", out) == 2
    assert "has cells that were not executed" in the_only_line(capsys)
    assert files(out) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", None, "does not exist"),
        ("a.ipynb", None, "no executed notebook"),
        ("a.jsonl", '{"kind":"step"', "a.jsonl:1: "),
        ("a.jsonl", "", "no records in"),
        ("a.ipynb", "{}", "is no notebook"),
    ],
)
def test_an_unreadable_source_is_one_line(tmp_path, out, capsys, name, content, message) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert wsync("report", tmp_path / name, "--output", out) == 2
    assert message in the_only_line(capsys)
    assert files(out) == []
