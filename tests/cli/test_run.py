"""``wsync run``: the exit status and the names of the files tell how it ended."""

import shutil
from pathlib import Path

import nbformat
import pytest

from tests.cli.small_notebooks import write_notebook
from tests.reports.made_records import step_record
from wsync_lab import cli
from wsync_lab.records import append
from wsync_lab.reports.html import external_addresses

ROOT = Path(__file__).parents[2]
CHART = """\
from matplotlib.figure import Figure
from wsync_lab.plots.style import Chart
from wsync_lab.reports.verdict import Verdict
from IPython.display import Markdown, display
"""


def wsync(*args: object) -> int:
    return cli.main([str(arg) for arg in args])


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def the_only_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("wsync: error: ")
    return lines[0]


def test_a_run_injects_the_parameters_and_shows_what_is_printed(tmp_path, capsys) -> None:
    source = write_notebook(tmp_path, "print(transports, num_steps, rate)")
    before = source.read_bytes()
    assert (
        wsync("run", source, "-p", "num_steps", 7, "-p", "transports", "pinned", "--output", tmp_path / "out")
        == 0
    )
    assert files(tmp_path / "out") == ["small.ipynb"]
    assert "['pinned'] 7 0.5" in capsys.readouterr().out
    assert source.read_bytes() == before


def test_a_failed_cell_exits_1_and_keeps_what_ran_under_a_name_that_says_so(tmp_path, capsys) -> None:
    source = write_notebook(tmp_path, "done = 41 + 1\ndone", "raise RuntimeError('no\\nluck')", "never = 1")
    assert wsync("run", source, "--output", tmp_path / "out") == 1
    assert files(tmp_path / "out") == ["small.failed.ipynb"]
    assert "cell In [3] raised RuntimeError: no luck" in the_only_line(capsys)
    kept = nbformat.read(tmp_path / "out" / "small.failed.ipynb", as_version=4)
    assert any("42" in str(cell.get("outputs")) for cell in kept.cells)


def test_a_killed_kernel_exits_1(tmp_path, capsys) -> None:
    source = write_notebook(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert wsync("run", source, "--output", tmp_path / "out") == 1
    assert files(tmp_path / "out") == ["small.failed.ipynb"]
    assert "the kernel died" in capsys.readouterr().err


def test_a_cell_that_exits_quietly_is_no_success(tmp_path, capsys) -> None:
    source = write_notebook(tmp_path, "import sys; sys.exit(0)", "never = 1")
    assert wsync("run", source, "--output", tmp_path / "out") == 1
    assert files(tmp_path / "out") == ["small.failed.ipynb"]


def test_what_the_notebook_refuses_exits_2_and_leaves_earlier_files_alone(tmp_path, capsys) -> None:
    refusal = "from wsync_lab.config import SyncConfig; SyncConfig('pinned', slot_bytes=num_steps)"
    source = write_notebook(tmp_path, refusal)
    out = tmp_path / "out"
    assert wsync("run", source, "--output", out) == 0
    before = (out / "small.ipynb").read_bytes()
    assert wsync("run", source, "-p", "num_steps", -1, "--output", out, "--overwrite") == 2
    assert "slot_bytes" in the_only_line(capsys)
    assert files(out) == ["small.ipynb"]
    assert (out / "small.ipynb").read_bytes() == before


def test_a_failed_run_takes_the_place_of_the_good_one_it_overwrites(tmp_path) -> None:
    source, out = write_notebook(tmp_path, "assert num_steps > 0"), tmp_path / "out"
    assert wsync("run", source, "--output", out) == 0
    assert wsync("run", source, "-p", "num_steps", 0, "--output", out, "--overwrite") == 1
    assert files(out) == ["small.failed.ipynb"]
    assert wsync("run", source, "--output", out) == 2
    assert wsync("run", source, "--output", out, "--overwrite") == 0
    assert files(out) == ["small.ipynb"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no.ipynb"], "no notebook no.ipynb"),
        (
            ["small.ipynb", "-p", "num_step", "3"],
            "unknown parameter 'num_step': this notebook has transports",
        ),
        (
            ["small.ipynb", "-p", "num_steps", "many"],
            "parameter 'num_steps' is 'many': give a value of type int",
        ),
        (["small.ipynb", "-p", "num_steps"], "-p: expected 2 arguments"),
        (["small.ipynb", "--fast"], "unrecognized arguments: --fast"),
        (["notes.txt"], "notes.txt is no notebook"),
        (["small.ipynb", "--output", "notes.txt"], "cannot write to notes.txt"),
        (["small.ipynb", "--output", "taken"], "taken/small.ipynb exists already"),
    ],
)
def test_a_request_that_cannot_be_served_is_one_line(tmp_path, monkeypatch, capsys, args, message) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(write_notebook(tmp_path, "raise SystemError").parent, tmp_path / "taken")
    (tmp_path / "notes.txt").write_text("no notebook")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert wsync("run", *args) == 2
    assert message in the_only_line(capsys)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("missing", "args"), [("ray", []), ("vllm", ["-p", "engine", "vllm"])])
def test_a_missing_package_is_named_before_anything_runs(
    tmp_path, monkeypatch, capsys, missing, args
) -> None:
    source = write_notebook(tmp_path, "raise SystemError", requires=["ray"])
    monkeypatch.setattr("wsync_lab.cli.requirements.find_spec", lambda name: None if name == missing else 1)
    assert wsync("run", source, *args, "--output", tmp_path / "out") == 2
    assert f"needs {missing}, which is not installed" in the_only_line(capsys)
    assert files(tmp_path / "out") == []


def test_the_parameters_of_a_notebook_are_listed(tmp_path, capsys) -> None:
    assert wsync("run", write_notebook(tmp_path), "--parameters") == 0
    assert "num_steps = 6  training steps\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["run"], ["report"]])
def test_help_shows_an_example(command, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    assert stopped.value.code == 0
    assert "example" in capsys.readouterr().out


def test_existing_records_become_a_report_without_ray_or_vllm(tmp_path, monkeypatch, capsys) -> None:
    records, out = tmp_path / "made.jsonl", tmp_path / "out"
    for transport in ("cpu", "pinned"):
        append(records, step_record(transport, seed=11))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("wsync_lab.cli.requirements.find_spec", lambda name: None)
    source = "notebooks/02_step_time_breakdown.ipynb"
    assert wsync("run", source, "-p", "records", records, "--output", out, "--report") == 0
    names = [f"02_step_time_breakdown.{kind}" for kind in ("html", "ipynb", "md")]
    assert files(out) == names
    html = (out / names[0]).read_text()
    assert external_addresses(html) == []
    assert html.count("<img ") == 5
    assert "| pinned (memfd) |" in capsys.readouterr().out
