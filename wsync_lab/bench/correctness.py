"""Every transport against every layout, between two processes, compared byte for byte."""

from collections.abc import Sequence
from pathlib import Path

import torch

from wsync_lab import provenance, records
from wsync_lab.bench.consumer import TensorEngine
from wsync_lab.bench.layouts import LayoutSource
from wsync_lab.config import SyncConfig
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.packing import as_bytes
from wsync_lab.protocol.sync import WeightSync

_NUM_UPDATES = 3


def run_correctness(
    transports: Sequence[str], layouts: Sequence[str], slot_bytes: int, seed: int, path: Path
) -> list[records.Record]:
    """One record of kind ``probe`` for each pair, appended to ``path``.

    Raises:
        ConfigError: an unknown transport or layout; nothing was written.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    configs = [SyncConfig(transport, slot_bytes) for transport in transports]
    sources = {layout: LayoutSource(layout, seed, device) for layout in layouts}
    run = {
        "schema_version": records.SCHEMA_VERSION,
        "kind": "probe",
        "run_id": records.new_run_id(),
        "provenance": provenance.collect(emulated_placement=device.type != "cuda"),
    }
    made = []
    for config in configs:
        for layout, source in sources.items():
            record = run | {"status": "ok", "error": None, **_try(config, layout, source, device)}
            records.append(path, record)
            made.append(record)
    return made


def _try(config: SyncConfig, layout: str, source: LayoutSource, device: torch.device) -> records.Record:
    asked = {"transport": config.transport, "layout": layout, "slot_bytes": config.slot_bytes}
    try:
        return _compare(config, source, device, asked)
    except Exception as error:  # a record says what happened, and the next pair runs
        return {"config": asked, "status": "failed", "error": f"{type(error).__name__}: {error}"}


def _compare(
    config: SyncConfig, source: LayoutSource, device: torch.device, asked: records.Record
) -> records.Record:
    tensors = [(meta.name, meta.dtype, list(meta.shape)) for meta in source.metadata()]
    with ProcessEngine(TensorEngine, tensors, device.type, source.aliases()) as engine:
        sync = WeightSync.connect(source, engine, config, device=device)
        wrong = 0
        for version in range(1, _NUM_UPDATES + 1):
            source.seed += 1
            sync.update(version)
            wrong += _num_mismatched(source, engine.call("stored_bytes"))
        carried = {"slot_memory": sync.slot_memory, "collective": sync.collective}
        sync.close()
    sizes = {"num_tensors": len(tensors), "num_updates": _NUM_UPDATES, "num_mismatched": wrong}
    return {"config": asked | carried, **sizes}


def _num_mismatched(source: LayoutSource, received: dict[str, bytes]) -> int:
    """Names, tied ones included, under which the receiver has other bytes than ``source``, or none."""
    sent = {name: as_bytes(tensor).cpu().numpy().tobytes() for name, tensor in source}
    sent |= {alias: sent[name] for alias, name in source.aliases().items()}
    return sum(received.get(name) != sent.get(name) for name in sent.keys() | received.keys())
