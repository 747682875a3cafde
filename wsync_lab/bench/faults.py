"""Faults at every message of an adapter update: what is served is the old adapter or the new one."""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from wsync_lab import provenance, records
from wsync_lab.bench.adapter_engines import AdapterEngine, tiny_adapter
from wsync_lab.bench.faulty import Fault, FaultyCarrier, Kind
from wsync_lab.config import SyncConfig
from wsync_lab.engines.process import PipeClient, ProcessEngine, serve
from wsync_lab.errors import WsyncError
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.packing import build_plan
from wsync_lab.protocol.carrier import EngineClient
from wsync_lab.weights import TensorMeta

_OLD, _NEW = 1, 2  # seeds
_REQUEST_KINDS: tuple[Kind, ...] = (
    "drop",
    "duplicate",
    "reorder",
    "truncate",
    "corrupt",
    "kill_trainer",
    "kill_worker",
)
_REPLY_KINDS: tuple[Kind, ...] = ("drop", "duplicate", "truncate", "corrupt")
_MESSAGES: dict[str, tuple[str, ...]] = {
    "request": ("AdapterBegin", "AdapterBucket", "Seal", "Commit"),
    "reply": ("Started", "SlotFree", "Prepared", "Done"),
}
_START_S = 300.0
_ANSWER_S = _HEALTHY_S = 60.0  # of what no fault meets, however busy the host is


@dataclass(frozen=True)
class FaultConfig:
    """Which faults, over which transport, into which engine (``torch`` or ``vllm``).

    Args:
        every_message: False takes each kind once, at a message in the middle.
        deadline_s: the trainer's in an update with a fault: a message that is lost costs it.
        slot_bytes: small, so that an update takes several buckets.
    """

    transport: str
    engine: str = "torch"
    every_message: bool = True
    deadline_s: float = 1.0
    slot_bytes: int = 12 << 10


def run_faults(config: FaultConfig, path: Path, progress: Callable[[str], None]) -> records.Record:
    """Inject every fault, one update each; the record is appended to ``path``."""
    record: records.Record = {
        "schema_version": records.SCHEMA_VERSION,
        "kind": "fault",
        "run_id": records.new_run_id(),
        "status": "ok",
        "error": None,
        "config": {"transport": config.transport, "engine": config.engine, "slot_bytes": config.slot_bytes},
        "provenance": provenance.collect(emulated_placement=True),
        "faults": [],
    }
    with _Run(config) as run:
        for fault in faults(run.num_messages, every_message=config.every_message):
            record["faults"].append(run.inject(fault))
            progress(_line(config.transport, record["faults"][-1]))
    wrong = [each for each in record["faults"] if each["served"] == "mixture" or not each["next_update"]]
    if wrong:
        record |= {"status": "failed", "error": f"{len(wrong)} faults left neither adapter, first {wrong[0]}"}
    records.append(path, record)
    return record


def faults(num_messages: int, *, every_message: bool) -> Iterator[Fault]:
    """Of every kind, at every message of an update or at one in the middle."""
    places = range(num_messages) if every_message else [num_messages // 2]
    for at in places:
        for kind in _REQUEST_KINDS:
            yield Fault(kind, "request", at, bit=97 * at + 5)
        if 0 < at < num_messages - 2:  # a bucket
            yield Fault("corrupt_payload", "request", at)
        for kind in _REPLY_KINDS:
            yield Fault(kind, "reply", at, bit=31 * at + 3)


class _Run:
    """One engine, which is started again when a fault has killed it."""

    def __init__(self, config: FaultConfig) -> None:
        self._config = config
        self._adapters = {seed: tiny_adapter(seed) for seed in (_OLD, _NEW)}
        metas = [TensorMeta.of(name, tensor) for name, tensor in self._adapters[_NEW].tensors.items()]
        self._num_buckets = len(build_plan(metas, {}, config.slot_bytes).buckets)
        self._engine = self._start()
        self._answers = {seed: self._served(self._connect(seed))[1] for seed in (_NEW, _OLD)}

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    @property
    def num_messages(self) -> int:
        return self._num_buckets + 3

    def inject(self, fault: Fault) -> dict[str, Any]:
        """One update with ``fault``, from the old adapter; see ``records.FaultOutcome``."""
        old_id, _ = self._served(self._connect(_OLD))
        start_s = time.perf_counter()
        update = self._update_in_child if fault.kind == "kill_trainer" else self._update
        error = update(fault)
        seconds = time.perf_counter() - start_s
        return {
            "fault": fault.kind,
            "direction": fault.direction,
            "at": fault.at,
            "message": self._message(fault),
            "error": error,
            "served": self._which(old_id, fault),
            "next_update": self._served(self._connect(_NEW))[1] == self._answers[_NEW],
            "seconds": seconds,
        }

    def _update(self, fault: Fault) -> str:
        """What the trainer was told."""
        sync = _connected(self._engine, self._adapters[_NEW], self._config, self._config.deadline_s)
        line = sync.lines[0]
        line.carrier = FaultyCarrier(line, fault, lambda: self._engine.signal(signal.SIGKILL))
        try:
            sync.update()
        except WsyncError as error:
            told = f"{type(error).__name__}: {error}"
        else:
            told = ""
        sync.close()
        return told

    def _update_in_child(self, fault: Fault) -> str:
        """The trainer is a process of its own, which ``fault`` kills."""
        context: Any = multiprocessing.get_context("forkserver")
        here, there = context.Pipe()
        proxy = threading.Thread(target=serve, args=(here, _Proxy(self._engine)))
        proxy.start()
        child = context.Process(target=_trainer_main, args=(there, self._engine.pid, fault, self._config))
        child.start()
        there.close()
        child.join(_ANSWER_S)
        proxy.join(_ANSWER_S)
        return f"killed by signal {-(child.exitcode or 0)}"

    def _which(self, old_id: int, fault: Fault) -> str:
        if fault.kind == "kill_worker":
            self._engine.close()
            self._engine = self._start()
            return "restarted"
        update_id, tokens = self._engine.call("answers", timeout_s=_ANSWER_S)
        if (update_id, tokens) == (old_id, self._answers[_OLD]):
            return "old"
        new = update_id > old_id and tokens == self._answers[_NEW]
        return "new" if new else "mixture"

    def _served(self, sync: AdapterSync) -> tuple[int, list[list[int]]]:
        """What the engine answers after a healthy update."""
        update_id = sync.update().weight_version
        sync.close()
        answer_id, tokens = self._engine.call("answers", timeout_s=_ANSWER_S)
        if answer_id != update_id:
            raise WsyncError(f"update {update_id} is committed, the engine serves {answer_id}")
        return update_id, tokens

    def _connect(self, seed: int) -> AdapterSync:
        return _connected(self._engine, self._adapters[seed], self._config, _HEALTHY_S)

    def _start(self) -> ProcessEngine:
        return ProcessEngine(AdapterEngine, self._config.engine, start_timeout_s=_START_S)

    def _message(self, fault: Fault) -> str:
        """The type of the message that the fault meets."""
        first, each, *last = _MESSAGES[fault.direction]
        return [first, *[each] * self._num_buckets, *last][fault.at]


def _line(transport: str, outcome: dict[str, Any]) -> str:
    ended = outcome["error"].partition(":")[0] or "succeeded all the same"
    return (
        f"{transport}: {outcome['fault']} at {outcome['message']} {outcome['at']}: {ended} after "
        f"{outcome['seconds']:.2f} s, the engine serves {outcome['served']}"
    )


class _Proxy:
    """An engine's methods for another process, which may be killed while it calls them."""

    def __init__(self, engine: ProcessEngine) -> None:
        self._engine = engine

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *args: self._engine.call(method, *args)


def _trainer_main(pipe: Connection, engine_pid: int, fault: Fault, config: FaultConfig) -> None:
    sync = _connected(PipeClient(pipe, engine_pid), tiny_adapter(_NEW), config, _HEALTHY_S)
    for line in sync.lines:
        line.carrier = FaultyCarrier(line, fault, kill_worker=lambda: None)
    sync.update()


def _connected(engine: EngineClient, adapter: Adapter, config: FaultConfig, deadline_s: float) -> AdapterSync:
    sync_config = SyncConfig(config.transport, config.slot_bytes, 2, deadline_s)
    return AdapterSync.connect(lambda: adapter, engine, sync_config)
