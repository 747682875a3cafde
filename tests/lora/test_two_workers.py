"""An engine of two workers serves an adapter when both have committed it, and the old one until then."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.engines.client import ThreadClient
from tests.lora.adapters_of import BASE, MODULES, adapter
from wsync_lab.bench.adapter_store import AdapterStore
from wsync_lab.config import SyncConfig
from wsync_lab.engines.adapters import ServesAdapters
from wsync_lab.errors import UpdateRejected
from wsync_lab.lora.manifest import AdapterManifest, AdapterTargets
from wsync_lab.lora.receiver import AdapterReceiver
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.lora.worker import AdapterWorker

TARGETS = AdapterTargets(MODULES, 16, "float32", BASE)
every_transport = pytest.mark.parametrize("transport", ["cpu", "pinned"])


class Store(AdapterStore):
    """Fails where a test asks for it."""

    fail = ""

    def __init__(self) -> None:
        super().__init__(TARGETS, torch.device("cpu"))

    def faults(self, manifest: AdapterManifest) -> list[str]:
        return ["this worker has another base"] if self.fail == "manifest" else super().faults(manifest)

    def stage(self, manifest: AdapterManifest, tensors: dict[str, torch.Tensor]) -> None:
        super().stage(manifest, tensors)
        if self.fail == "stage":
            raise RuntimeError("this worker has no memory left")


class TwoWorkers(ServesAdapters):
    """Both work at once, as those of a tensor-parallel engine."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = [Store(), Store()]
        self.workers = [AdapterWorker(store, rank) for rank, store in enumerate(self.stores)]
        self._threads = ThreadPoolExecutor(2)

    def _workers(self, method: str, *args: Any) -> list[Any]:
        name = method.removeprefix("adapter_")
        calls = [self._threads.submit(getattr(worker, name), *args) for worker in self.workers]
        return [call.result(30) for call in calls]

    def served(self) -> list[list[int]]:
        return [sorted(store.held) for store in self.stores]


@pytest.fixture
def engine() -> Iterator[TwoWorkers]:
    yield TwoWorkers()


def connect(engine: TwoWorkers, transport: str, now: list[Adapter]) -> AdapterSync:
    config = SyncConfig(transport, 1024, deadline_s=20.0)
    return AdapterSync.connect(lambda: now[0], ThreadClient(engine), config, num_workers=2)  # type: ignore[arg-type]


@every_transport
@pytest.mark.parametrize("fail", ["manifest", "stage"])
@pytest.mark.parametrize("which", [0, 1])
def test_what_one_worker_rejects_neither_serves(
    engine: TwoWorkers, transport: str, fail: str, which: int
) -> None:
    now = [adapter(1)]
    sync = connect(engine, transport, now)
    old_id = sync.update().weight_version
    now[0] = adapter(2, rank=8)
    engine.stores[which].fail = fail
    with pytest.raises(UpdateRejected, match="this worker has"):
        sync.update()
    assert (engine.update_id, engine.served()) == (old_id, [[old_id], [old_id]])
    engine.stores[which].fail = ""
    new_id = sync.update().weight_version
    assert (engine.update_id, engine.served()) == (new_id, [[new_id], [new_id]])
    sync.close()


@every_transport
def test_a_commit_that_reaches_one_worker_is_served_by_neither(
    engine: TwoWorkers, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old adapter is freed by nobody before the engine has switched."""
    now = [adapter(1)]
    sync = connect(engine, transport, now)
    old_id = sync.update().weight_version
    now[0] = adapter(2)
    commit = AdapterReceiver._commit
    lost = engine.workers[1]._endpoint._receiver

    def refuse_on_one(receiver: AdapterReceiver, message: Any) -> Any:
        if receiver is lost:
            raise RuntimeError("planted fault in commit")
        return commit(receiver, message)

    with monkeypatch.context() as patch:
        patch.setattr(AdapterReceiver, "_commit", refuse_on_one)
        with pytest.raises(UpdateRejected, match="planted fault in commit"):
            sync.update()
    assert (engine.update_id, engine.served()) == (old_id, [[old_id], [old_id]])
    new_id = sync.update().weight_version
    assert (engine.update_id, engine.served()) == (new_id, [[new_id], [new_id]])
    sync.close()
