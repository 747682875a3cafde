"""Adapter updates under a stop-watch and under faults: what is recorded is what happened."""

from pathlib import Path

import pytest
import torch

from wsync_lab import records
from wsync_lab.bench.adapter_payload import modules, payload
from wsync_lab.bench.adapters import AdapterBenchConfig, run_adapter_bench
from wsync_lab.bench.faults import FaultConfig, faults, run_faults
from wsync_lab.bench.faulty import Fault
from wsync_lab.errors import ConfigError
from wsync_lab.lora.manifest import AdapterTargets, build_manifest
from wsync_lab.tables.faults import served


def test_the_payload_has_the_reports_size_and_is_a_whole_adapter() -> None:
    made = payload(seed=1, device=torch.device("cpu"), base_digest="b")
    assert len(made.tensors) == 624
    assert sum(tensor.nbytes for tensor in made.tensors.values()) == 169_417_728
    manifest = build_manifest(1, "b", made.config, made.tensors)
    assert AdapterTargets(modules(), 16, "bfloat16", "b").faults(manifest) == []
    other = payload(seed=2, device=torch.device("cpu"), base_digest="b")
    assert all(not torch.equal(other.tensors[name], tensor) for name, tensor in made.tensors.items())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_transport_is_a_record_of_kind_lora(tmp_path: Path) -> None:
    path = tmp_path / "lora.jsonl"
    config = AdapterBenchConfig(("pinned", "cuda_ipc"), repeats=2)
    done, failed = run_adapter_bench(config, path, lambda text: None)
    assert records.read(path)[0]["sync_times_s"] == done["sync_times_s"]
    assert done["num_mismatched"] == 0
    assert len(done["sync_times_s"]) == 2
    assert all(time > done["limit_s"] for time in done["sync_times_s"])
    assert failed["error"].startswith("TransportUnavailable: ")


def test_a_bench_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown transport"):
        AdapterBenchConfig(("pigeon",))
    with pytest.raises(ConfigError, match="repeats is 0"):
        AdapterBenchConfig(repeats=0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["cpu", "pinned"])
def test_whatever_fails_the_old_adapter_or_the_new_one_is_served(tmp_path: Path, transport: str) -> None:
    record = run_faults(FaultConfig(transport, deadline_s=0.5), tmp_path / "faults.jsonl", lambda text: None)
    assert record["status"] == "ok", record["error"]
    assert {each["served"] for each in record["faults"]} == {"old", "new", "restarted"}
    assert all(each["next_update"] for each in record["faults"])
    before_commit = {each["message"] for each in record["faults"]} - {"Commit", "Done"}
    for each in record["faults"]:
        if each["error"] and each["message"] in before_commit - {"Seal", "Prepared"}:
            assert each["served"] != "new", each
        if each["fault"] == "kill_worker":
            assert each["served"] == "restarted"
        if each["fault"] in {"drop", "truncate", "corrupt_payload"} and each["direction"] == "request":
            assert each["served"] == "old", each
    table = served([record])
    assert {"AdapterBegin", "AdapterBucket", "Seal", "Commit"} <= set(table.columns)
    assert "mixture" not in str(table.to_numpy())


def test_every_kind_meets_every_message_it_can() -> None:
    every = list(faults(6, every_message=True))
    assert {(fault.kind, fault.at) for fault in every if fault.direction == "request"} >= {
        (kind, at) for kind in ("drop", "reorder", "kill_trainer", "kill_worker") for at in range(6)
    }
    assert [fault.at for fault in every if fault.kind == "corrupt_payload"] == [1, 2, 3]
    once = list(faults(6, every_message=False))
    assert {fault.at for fault in once} == {3}
    assert Fault("corrupt_payload", "request", 3) in once


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_class_of_fault_leaves_vllm_with_a_whole_adapter(tmp_path: Path) -> None:
    config = FaultConfig("pinned", engine="vllm", every_message=False)
    record = run_faults(config, tmp_path / "faults.jsonl", lambda text: None)
    assert record["status"] == "ok", record["error"]
    assert len(record["faults"]) == 12
