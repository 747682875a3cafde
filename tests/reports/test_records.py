"""Records: strict JSON Lines that name what is wrong, and where."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reports.made_records import step_record
from wsync_lab import records
from wsync_lab.errors import ConfigError
from wsync_lab.records import RecordError


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    written = [step_record("cpu", seed=1), step_record("pinned", seed=2, error="PeerLost: gone")]
    for record in written:
        records.append(tmp_path / "deep" / "a.jsonl", record)
    assert records.read(tmp_path / "deep" / "a.jsonl") == written


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_json_lacks_is_refused_by_its_field(tmp_path: Path, value: float) -> None:
    record = step_record("cpu", num_steps=3)
    record["steps"][2]["logprob_gap"] = value
    with pytest.raises(RecordError, match=r"steps\[2\]\.logprob_gap"):
        records.append(tmp_path / "a.jsonl", record)
    assert not (tmp_path / "a.jsonl").exists()
    record["steps"][2]["logprob_gap"] = records.finite_or_none(value)
    records.append(tmp_path / "a.jsonl", record)
    assert '"logprob_gap":null' in (tmp_path / "a.jsonl").read_text()


def test_nan_written_by_somebody_else_is_refused_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    records.append(file, step_record("cpu"))
    with file.open("a") as stream:
        stream.write(json.dumps({**step_record("cpu"), "init_time_s": math.nan}) + "\n")
    with pytest.raises(RecordError, match=r"a\.jsonl:2: "):
        records.read(file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "fine"),
        ("error", "but status is ok"),
        ("kind", "stepp"),
        ("schema_version", 2),
        ("config", {"transport": "carrier_pigeon"}),
        ("provenance", None),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    with pytest.raises(RecordError, match=rf"\$\.{field}"):
        records.validate({**step_record("cpu"), field: value})


def test_a_step_with_an_unknown_or_missing_phase_is_refused() -> None:
    record = step_record("cpu", num_steps=2)
    record["steps"][1]["phase_times_s"]["lunch"] = 1.0
    with pytest.raises(RecordError, match=r"lunch.*steps\[1\]\.phase_times_s"):
        records.validate(record)


def test_a_failed_run_needs_its_error() -> None:
    with pytest.raises(RecordError, match=r"\$\.error"):
        records.validate({**step_record("cpu"), "status": "failed"})


def test_a_line_is_written_whole_by_each_of_many_writers(tmp_path: Path) -> None:
    file, count = tmp_path / "a.jsonl", 24
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: records.append(file, step_record("cpu", seed=seed)), range(count)))
    assert sorted(record["run_id"] for record in records.read(file)) == sorted(
        step_record("cpu", seed=seed)["run_id"] for seed in range(count)
    )


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    records.append(file, step_record("cpu"))
    before = file.read_bytes()

    def no_space(fd: int, data: bytes, write=records.os.write) -> int:
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(records.os, "write", no_space)
    with pytest.raises(OSError, match="disk space"):
        records.append(file, step_record("pinned"))
    assert file.read_bytes() == before


def test_a_folder_stands_for_its_files_in_order(tmp_path: Path) -> None:
    for seed in (2, 1):
        records.append(tmp_path / f"{seed}.jsonl", step_record("cpu", seed=seed))
    found = [record["run_id"][-1] for record in records.read(tmp_path)]
    assert found == ["1", "2"]


def test_missing_files_and_empty_folders_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        records.read(tmp_path / "no.jsonl")
    with pytest.raises(RecordError, match="no records in"):
        records.read(tmp_path)


def test_the_project_folder_is_found_from_inside_only(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert records.project_folder(root / "notebooks") == root
    with pytest.raises(ConfigError, match="outside a checkout"):
        records.project_folder(tmp_path)
