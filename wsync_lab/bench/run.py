"""Run a benchmark: one record a transport, raw samples inside."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from wsync_lab import provenance, records
from wsync_lab.bench import ceilings, payloads
from wsync_lab.bench.config import BenchConfig
from wsync_lab.bench.consumer import TensorEngine
from wsync_lab.bench.memory import Peak
from wsync_lab.bench.samples import samples
from wsync_lab.bench.vllm_consumer import VllmTarget
from wsync_lab.digest import tensor_digest
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.errors import WsyncError
from wsync_lab.protocol.phases import SYNC_PHASES, SyncReport
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import TensorSource

Progress = Callable[[str], None]
_VLLM_START_S = 300.0
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def run_bench(config: BenchConfig, records_path: Path, progress: Progress) -> list[records.Record]:
    """Time ``config`` on this machine; each transport's record is appended as it ends.

    A transport that fails gives a record with ``status`` failed; the others still run.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    progress(f"ceilings of this machine ({device.type})")
    run = _Run(config, device, ceilings.measure(device), progress)
    return [run.measure(transport, records_path) for transport in config.transports]


class _Run:
    """The records of one command: same weights, same ceilings."""

    def __init__(
        self, config: BenchConfig, device: torch.device, rates: dict[str, list[float]], say: Progress
    ) -> None:
        self._config, self._device, self._say = config, device, say
        self._rates, self._ceilings = rates, {k: statistics.median(v) for k, v in rates.items()}
        self._payload = config.load()
        self._weights = payloads.initial_values(self._payload.tensors, device)
        self._run_id = records.new_run_id()
        self._provenance = provenance.collect(emulated_placement=device.type != "cuda")
        self._version = 0

    def measure(self, transport: str, records_path: Path) -> records.Record:
        record = self._empty_record(transport)
        try:
            with self._engine() as engine:
                self._measure(transport, engine, record)
        except Exception as error:  # a record says what happened, and the next transport runs
            record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            self._say(f"{transport}: failed: {error}")
        records.append(records_path, record)
        return record

    @contextmanager
    def _engine(self) -> Iterator[ProcessEngine]:
        if self._config.engine == "vllm" and self._payload.shape is not None:
            shape = dataclasses.astuple(self._payload.shape)
            with ProcessEngine(VllmTarget, shape, start_timeout_s=_VLLM_START_S) as engine:
                yield engine
            return
        tensors = [(meta.name, meta.dtype, list(meta.shape)) for meta in self._payload.tensors]
        with ProcessEngine(TensorEngine, tensors, self._device.type) as engine:
            yield engine

    def _measure(self, transport: str, engine: ProcessEngine, record: records.Record) -> None:
        peak = Peak(self._device)
        engine.call("reset_peak")
        start_s = time.perf_counter()
        source, options = TensorSource(self._weights.items()), self._config.sync_config(transport)
        sync = WeightSync.connect(source, engine, options, device=self._device)
        record["init_time_s"] = time.perf_counter() - start_s
        reports = self._updates(sync, engine, transport)
        record["config"] |= _described(sync, engine.call("describe"))
        record |= samples(reports[self._config.warmups :])
        record["peak_extra_bytes"] = {"trainer": peak.extra(), "worker": engine.call("memory")[1]}
        record["num_mismatched"] = self._num_mismatched(engine)
        sync.close()
        self._check(transport, record)

    def _updates(self, sync: WeightSync, engine: ProcessEngine, transport: str) -> list[SyncReport]:
        reports = []
        for _ in range(self._config.warmups + self._config.repeats_of(transport)):
            self._version += 1
            payloads.change_values(self._weights, self._version)
            reports.append(sync.update(self._version))
            used = engine.call("memory")[0]
            self._say(f"{transport}: {reports[-1].sync_time_s:.4f} s [wsync-mem] worker {used} bytes")
        return reports

    def _num_mismatched(self, engine: ProcessEngine) -> int:
        received = engine.call("digests", timeout_s=self._config.deadline_s)
        return sum(tensor_digest(self._expected(name)) != digest for name, digest in received.items())

    def _expected(self, name: str) -> torch.Tensor:
        """What the engine's parameter ``name`` must hold; vLLM fuses some of what was sent."""
        for fused, parts in _FUSED.items():
            if f".{fused}." in name and name not in self._weights:
                return torch.cat([self._weights[name.replace(fused, part)] for part in parts])
        return self._weights[name]

    def _check(self, transport: str, record: records.Record) -> None:
        """Raises ``WsyncError`` for a measurement that cannot be right."""
        if record["num_mismatched"]:
            raise WsyncError(f"{record['num_mismatched']} tensors arrived with other bytes")
        best = {name: max(rates) for name, rates in self._rates.items()}
        floor_s = ceilings.floor_s(self._device, transport, self._payload.num_bytes, best)
        fastest_s = min(record["sync_times_s"])
        if fastest_s < floor_s:
            raise WsyncError(
                f"an update took {fastest_s:.6f} s, one copy takes {floor_s:.6f} s: not timed right"
            )

    def _empty_record(self, transport: str) -> records.Record:
        settings = dataclasses.asdict(self._config)
        settings.pop("transports")
        settings |= {"transport": transport, "model": self._payload.name, "device": self._device.type}
        settings |= {"payload_bytes": self._payload.num_bytes, "num_tensors": len(self._payload.tensors)}
        return {
            "schema_version": records.SCHEMA_VERSION,
            "kind": "sync",
            "run_id": self._run_id,
            "status": "ok",
            "error": None,
            "config": settings | self._slot_cost(transport),
            "provenance": self._provenance,
            "ceilings": self._rates,
            "limit_s": ceilings.limit_s(self._device, transport, self._payload.num_bytes, self._ceilings),
            "init_time_s": None,
            "sync_times_s": [],
            "phase_times_s": {name: [] for name in SYNC_PHASES},
            "pause_s": [],
            "resume_s": [],
            "peak_extra_bytes": None,
            "num_mismatched": None,
        }

    def _slot_cost(self, transport: str) -> dict[str, Any]:
        """The ring in bytes, and as tokens of KV cache that do not fit beside it on the device."""
        ring_bytes = self._config.slot_bytes * self._config.num_slots
        shape = self._payload.shape
        tokens = ring_bytes // shape.kv_bytes_per_token() if shape else None
        return {"ring_bytes": ring_bytes, "ring_kv_tokens": tokens}


def _described(sync: WeightSync, engine: dict[str, Any]) -> dict[str, Any]:
    plan = sync.plan
    return engine | {
        "slot_memory": sync.slot_memory,
        "collective": sync.collective,
        "payload_bytes": plan.payload_bytes,
        "num_tensors": len(plan.tensors),
        "num_buckets": len(plan.buckets),
        "num_rpcs": len(plan.buckets) + 4 if sync.one_rpc_per_bucket else 1,
        "num_handles": sync.num_handles,
    }
