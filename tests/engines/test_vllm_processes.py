"""A vLLM whose engine and worker are processes of their own, and what is left when one dies."""

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from tests.engines.client import connect
from wsync_lab.engines.base import Sampling
from wsync_lab.engines.tiny import build_tiny_qwen2, save_model
from wsync_lab.engines.vllm.engine import VllmEngine, VllmOptions
from wsync_lab.errors import EngineFenced, PeerLost
from wsync_lab.weights import ModuleSource

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]
DEADLINE_S = 20.0
PROMPT = [[3, 14, 15, 92]]


class PausingSource(ModuleSource):
    """Once armed, stops before its last tensor until ``go`` is set."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.reached, self.go = threading.Event(), threading.Event()
        self.armed = False

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        *first, last = super().__iter__()
        yield from first
        if self.armed:
            self.reached.set()
            self.go.wait(DEADLINE_S)
        yield last


def children() -> set[psutil.Process]:
    """This process's own; Python's resource tracker stays until the end and is not counted."""
    found = psutil.Process().children(recursive=True)
    return {process for process in found if "resource_tracker" not in " ".join(process.cmdline())}


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[VllmEngine, set[psutil.Process]]]:
    """An engine, and its processes."""
    others = children()
    folder = save_model(build_tiny_qwen2(tied=True, dtype="float32", seed=0), tmp_path / "model")
    engine = VllmEngine(VllmOptions(folder, "float32", max_model_len=64, kv_cache_bytes=16 << 20))
    yield engine, children() - others
    engine.close()


def greedy(model: nn.Module, num_tokens: int) -> list[int]:
    tokens = list(PROMPT[0])
    for _ in range(num_tokens):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT[0]) :]


def held_open() -> Counter[str]:
    """The sockets and memory files that this process has open, by kind."""
    links = (Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    kinds = (str(link.readlink()).split(":[")[0] for link in links if link.is_symlink())
    return Counter(kind for kind in kinds if kind == "socket" or kind.startswith("/memfd:"))


def left_in_tmp() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("wsync-*"))


def worker_among(processes: set[psutil.Process]) -> psutil.Process:
    (worker,) = [process for process in processes if "Worker" in process.name()]
    return worker


def kill_when_reached(source: PausingSource, worker: psutil.Process) -> None:
    source.reached.wait(DEADLINE_S)
    worker.kill()
    source.go.set()


def test_a_worker_killed_in_mid_update(started: tuple[VllmEngine, set[psutil.Process]]) -> None:
    engine, processes = started
    open_before, tmp_before = held_open(), left_in_tmp()
    model = build_tiny_qwen2(tied=True, dtype="float32", seed=1)
    source = PausingSource(model)
    sync = connect(engine, source, "pinned", slot_bytes=20_000, deadline_s=DEADLINE_S)
    sync.update(1)
    assert engine.generate(PROMPT, Sampling(8))[0].token_ids == greedy(model, 8)

    source.armed = True
    killer = threading.Thread(target=kill_when_reached, args=(source, worker_among(processes)))
    killer.start()
    start_s = time.monotonic()
    with pytest.raises(PeerLost):
        sync.update(2)
    assert time.monotonic() - start_s < DEADLINE_S
    killer.join()
    with pytest.raises(EngineFenced):
        engine.generate(PROMPT, Sampling(8))

    sync.close()
    engine.close()
    assert not held_open() - open_before
    assert left_in_tmp() == tmp_before
    assert psutil.wait_procs(processes, 20)[1] == []
