"""Time adapter updates of the report's payload: one record of kind ``lora`` a transport."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wsync_lab import provenance, records
from wsync_lab.bench import ceilings
from wsync_lab.bench.adapter_payload import RANK, modules, payload
from wsync_lab.bench.adapter_store import AdapterStoreEngine
from wsync_lab.bench.samples import samples
from wsync_lab.config import MiB, SyncConfig
from wsync_lab.digest import tensor_digest
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.errors import ConfigError, WsyncError
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.protocol.phases import SYNC_PHASES, SyncReport

_BASE = "0" * 64  # there is no base here: both ends name the same none


@dataclass(frozen=True)
class AdapterBenchConfig:
    """Updates of 624 tensors through each transport, one after another.

    Raises:
        ConfigError: names the parameter, and what it may be.
    """

    transports: tuple[str, ...] = ("cpu", "pinned")
    slot_bytes: int = 64 * MiB
    num_slots: int = 2
    warmups: int = 1
    repeats: int = 9
    deadline_s: float = 120.0

    def __post_init__(self) -> None:
        for transport in self.transports:
            self.sync_config(transport)
        for name in ("warmups", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number above 0")

    def sync_config(self, transport: str) -> SyncConfig:
        return SyncConfig(transport, self.slot_bytes, self.num_slots, self.deadline_s)


def run_adapter_bench(
    config: AdapterBenchConfig, path: Path, progress: Callable[[str], None]
) -> list[records.Record]:
    """Time ``config`` on this machine; each transport's record is appended as it ends."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    progress(f"ceilings of this machine ({device.type})")
    run = _Run(config, device, ceilings.measure(device), progress)
    return [run.measure(transport, path) for transport in config.transports]


class _Run:
    """The records of one command: same ceilings, same engine."""

    def __init__(
        self,
        config: AdapterBenchConfig,
        device: torch.device,
        rates: dict[str, list[float]],
        say: Callable[[str], None],
    ) -> None:
        self._config, self._device, self._rates, self._say = config, device, rates, say
        self._ceilings = {name: statistics.median(samples) for name, samples in rates.items()}
        self._adapters = [payload(seed, device, _BASE) for seed in (1, 2)]  # never the same twice
        self._envelope = {
            "schema_version": records.SCHEMA_VERSION,
            "kind": "lora",
            "run_id": records.new_run_id(),
            "provenance": provenance.collect(emulated_placement=device.type != "cuda"),
        }

    def measure(self, transport: str, path: Path) -> records.Record:
        record = self._envelope | {"status": "ok", "error": None} | self._empty(transport)
        try:
            with ProcessEngine(AdapterStoreEngine, *self._engine_arguments()) as engine:
                self._measure(transport, engine, record)
        except Exception as error:  # a record says what happened, and the next transport runs
            record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            self._say(f"{transport}: failed: {error}")
        records.append(path, record)
        return record

    def _measure(self, transport: str, engine: ProcessEngine, record: records.Record) -> None:
        sent = iter(range(self._config.warmups + self._config.repeats))
        config = self._config.sync_config(transport)
        sync = AdapterSync.connect(
            lambda: self._adapters[next(sent) % 2], engine, config, device=self._device
        )
        reports = [self._timed(sync, transport) for _ in range(self._config.warmups + self._config.repeats)]
        record["config"] |= engine.call("describe")
        record["config"] |= {"slot_memory": sync.slot_memory, "collective": sync.collective}
        record |= samples(reports[self._config.warmups :])
        last = self._adapters[(len(reports) - 1) % 2]
        record["num_mismatched"] = _num_mismatched(last, engine.call("digests"))
        sync.close()
        if record["num_mismatched"]:
            raise WsyncError(f"{record['num_mismatched']} tensors arrived with other bytes")

    def _timed(self, sync: AdapterSync, transport: str) -> SyncReport:
        report = sync.update()
        self._say(f"{transport}: {report.sync_time_s:.4f} s")
        return report

    def _engine_arguments(self) -> Sequence[Any]:
        shapes = [(path, *features) for path, features in modules().items()]
        return shapes, RANK, "bfloat16", _BASE, self._device.type

    def _empty(self, transport: str) -> dict[str, Any]:
        tensors = self._adapters[0].tensors.values()
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        settings = {name: getattr(self._config, name) for name in ("slot_bytes", "num_slots", "warmups")}
        sizes = {"payload_bytes": num_bytes, "num_tensors": len(tensors)}
        settings |= {"transport": transport, "model": "lora-624", "device": self._device.type} | sizes
        return {
            "config": settings,
            "ceilings": self._rates,
            "limit_s": ceilings.limit_s(self._device, transport, num_bytes, self._ceilings),
            "init_time_s": None,
            "sync_times_s": [],
            "phase_times_s": {name: [] for name in SYNC_PHASES},
            "pause_s": [],
            "resume_s": [],
            "peak_extra_bytes": None,
            "num_mismatched": None,
        }


def _num_mismatched(adapter: Adapter, received: dict[str, int]) -> int:
    names = adapter.tensors.keys() | received.keys()
    return sum(
        name not in adapter.tensors or tensor_digest(adapter.tensors[name]) != received.get(name)
        for name in names
    )
