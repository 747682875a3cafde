"""Benchmarks count only what arrived right, and refuse what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from wsync_lab import records
from wsync_lab.bench import ceilings, payloads, run
from wsync_lab.bench.config import BenchConfig
from wsync_lab.bench.consumer import TensorEngine
from wsync_lab.cli import main
from wsync_lab.digest import tensor_digest
from wsync_lab.errors import ConfigError
from wsync_lab.records import SYNC_PHASES
from wsync_lab.tables import syncs

SMALL = {"payload_bytes": 400_000, "num_tensors": 7, "slot_bytes": 65_536, "warmups": 1, "repeats": 2}


def quiet(text: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture(autouse=True)
def made_up_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes of a busy host must not decide whether these tests pass."""
    monkeypatch.setattr(ceilings, "measure", lambda device: {"host": [500.0, 400.0]})


def bench(folder: Path, **options: Any) -> list[records.Record]:
    return run.run_bench(BenchConfig(**SMALL | options), folder / "bench.jsonl", quiet)


@pytest.mark.parametrize(
    ("name", "num_tensors", "num_bytes"),
    [
        ("qwen2.5-3b", 434, 6_171_877_376),
        ("qwen2.5-0.5b", 290, 988_065_536),
        ("qwen2.5-7b", 339, 15_231_233_024),
    ],
)
def test_presets_have_the_published_sizes(name: str, num_tensors: int, num_bytes: int) -> None:
    payload = payloads.payload_of(name, 0, 0)
    assert (len(payload.tensors), payload.num_bytes) == (num_tensors, num_bytes)


def test_a_token_of_qwen25_3b_takes_36_kib_of_cache() -> None:
    assert payloads.QWEN25["qwen2.5-3b"].kv_bytes_per_token() == 36 * 1024


def test_synthetic_tensors_add_up() -> None:
    payload = payloads.payload_of("synthetic", 1_000_001, 7)
    assert len(payload.tensors) == 7
    assert payload.num_bytes == 1_000_000


@pytest.mark.parametrize("name", ["qwen2.5-0.5b-mixed", "qwen2.5-3b-fp8"])
def test_presets_of_several_dtypes_have_them(name: str) -> None:
    dtypes = {tensor.dtype for tensor in payloads.payload_of(name, 0, 0).tensors}
    assert dtypes > {"bfloat16", "float32"} or dtypes == {"bfloat16", "float32"}


def test_every_tensor_changes_between_versions_and_differs_from_the_others() -> None:
    tensors = payloads.payload_of("synthetic", 8000, 4).tensors
    weights = payloads.initial_values(tensors, torch.device("cpu"))
    seen = {tensor_digest(tensor) for tensor in weights.values()}
    for version in (1, 2, 3):
        payloads.change_values(weights, version)
        seen |= {tensor_digest(tensor) for tensor in weights.values()}
    assert len(seen) == 4 * len(tensors)


def test_each_transport_is_a_record_with_its_raw_samples(tmp_path: Path) -> None:
    made = bench(tmp_path, transports=("cpu", "pinned"), cpu_repeats=1)
    assert [record["status"] for record in made] == ["ok", "ok"]
    for record, repeats in zip(records.read(tmp_path / "bench.jsonl"), (1, 2), strict=True):
        assert len(record["sync_times_s"]) == repeats
        for index, total_s in enumerate(record["sync_times_s"]):
            parts = sum(record["phase_times_s"][name][index] for name in SYNC_PHASES)
            assert parts == pytest.approx(total_s)
        assert record["num_mismatched"] == 0
        assert record["config"]["ring_bytes"] == 2 * 65_536
    table = syncs.summary(made)
    assert table["vs_cpu"][0] == 1
    assert table["GBps"][1] == pytest.approx(400_000 / table["sync_s"][1] / 1e9)


def test_a_transport_that_cannot_run_is_a_record_and_the_next_one_runs(tmp_path: Path) -> None:
    failed, done = bench(tmp_path, transports=("cuda_ipc", "pinned"))
    assert failed["error"].startswith("TransportUnavailable: ")
    assert done["status"] == "ok"
    assert list(syncs.summary([failed, done])["status"])[1] == "ok"


class LossyEngine(TensorEngine):
    """Reports success, and has other bytes in one tensor."""

    def digests(self) -> dict[str, int]:
        self._applier.live["layers.3.weight"][5] = 0.5
        return super().digests()


def test_bytes_that_differ_are_a_failed_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TensorEngine", LossyEngine)
    (record,) = bench(tmp_path, transports=("pinned",))
    assert record["status"] == "failed"
    assert "1 tensors arrived with other bytes" in record["error"]


def test_ceilings_are_measured_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(ceilings, "_COPY_BYTES", 1 << 20)
    (rates,) = ceilings.measure(torch.device("cpu")).values()
    assert len(rates) == 7
    assert all(0 < rate < 10_000 for rate in rates)
    assert len(set(rates)) > 1


def test_a_time_below_one_copy_is_a_failed_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda device: {"host": [1e-6]})
    (record,) = bench(tmp_path, transports=("pinned",))
    assert "not timed right" in record["error"]


def test_a_speed_with_mismatches_is_no_record(tmp_path: Path) -> None:
    (record,) = bench(tmp_path, transports=("pinned",))
    for count in (1, None):
        with pytest.raises(records.RecordError, match="mismatched tensors"):
            records.validate(record | {"num_mismatched": count})


def test_the_fit_finds_the_costs_it_was_made_of(tmp_path: Path) -> None:
    (record,) = bench(tmp_path, transports=("pinned",))
    made = []
    for num_tensors in (10, 100):
        for payload_bytes in (10**6, 10**8):
            time_s = 2e-3 + 5e-6 * num_tensors + payload_bytes / 4e9
            config = record["config"] | {"num_tensors": num_tensors, "payload_bytes": payload_bytes}
            made.append(record | {"config": config, "sync_times_s": [time_s]})
    (fit,) = syncs.fixed_costs(made).to_dict("records")
    assert fit["update_s"] == pytest.approx(2e-3)
    assert fit["tensor_s"] == pytest.approx(5e-6)
    assert fit["GBps"] == pytest.approx(4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"transports": ("rdma",)}, "unknown transport 'rdma'"),
        ({"payload": "gpt-9"}, "unknown payload 'gpt-9': choose one of"),
        ({"num_tensors": 0}, "give each tensor 2 bytes or more"),
        ({"payload_bytes": -5}, "give each tensor 2 bytes or more"),
        ({"repeats": 0}, "repeats is 0"),
        ({"engine": "sglang"}, "engine is 'sglang'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchConfig(**SMALL | wrong)


def command(folder: Path, *options: str) -> list[str]:
    sizes = ["--payload-bytes", "400000", "--num-tensors", "16", "--slot-bytes", "65536"]
    counts = ["--warmups", "1", "--repeats", "1"]
    return ["bench", *sizes, *counts, "--output", str(folder / "new.jsonl"), *options]


def test_the_command_prints_records_or_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "--transports", "pinned", "--json")) == 0
    assert json.loads(capsys.readouterr().out)[0]["config"]["transport"] == "pinned"
    (tmp_path / "new.jsonl").unlink()
    assert main(command(tmp_path, "--transports", "pinned", "--sweep")) == 0
    assert "per update (ms)" in capsys.readouterr().out
    assert len(records.read(tmp_path / "new.jsonl")) == 6


def test_the_command_refuses_before_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "--transports", "pinned,rdma")) == 2
    assert "unknown transport 'rdma'" in capsys.readouterr().err
    assert not (tmp_path / "new.jsonl").exists()
    (tmp_path / "new.jsonl").write_text("kept")
    assert main(command(tmp_path)) == 2
    assert "raw records are written once" in capsys.readouterr().err
    assert (tmp_path / "new.jsonl").read_text() == "kept"


def test_a_failed_transport_is_exit_status_1(tmp_path: Path) -> None:
    assert main(command(tmp_path, "--transports", "cuda_ipc")) == 1
