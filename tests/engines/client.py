"""A trainer's handle on an engine of its own process: each call runs in one worker thread."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from wsync_lab.config import SyncConfig
from wsync_lab.engines.base import Engine
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import WeightSource


class Call:
    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def result(self, timeout_s: float) -> Any:
        return self._future.result(timeout_s)


class ThreadClient:
    """``EngineClient`` over an ``Engine`` object."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1)

    def submit(self, method: str, *args: Any) -> Call:
        return Call(self._thread.submit(getattr(self._engine, method), *args))


def connect(engine: Engine, source: WeightSource, transport: str, **config: Any) -> WeightSync:
    """Slots of 4 KiB, so that every update takes several buckets."""
    options = {"slot_bytes": 4096, "num_slots": 2, "deadline_s": 20.0} | config
    return WeightSync.connect(source, ThreadClient(engine), SyncConfig(transport, **options))
