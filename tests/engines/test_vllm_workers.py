"""One vLLM, two workers: an adapter is served by both, or by neither."""

from pathlib import Path

import pytest
import torch

from tests.engines.client import ThreadClient
from wsync_lab.bench.adapter_engines import tiny_adapter, tiny_base
from wsync_lab.bench.faulty import Fault, FaultyCarrier
from wsync_lab.config import SyncConfig
from wsync_lab.engines.base import Sampling
from wsync_lab.engines.tiny import save_model
from wsync_lab.engines.vllm.engine import VllmEngine, VllmOptions
from wsync_lab.errors import ConfigError, UpdateRejected
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import ModuleSource

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]
PROMPTS = [[3], [200, 7, 9]]


def merged_answer(adapter: Adapter) -> list[list[int]]:
    """Greedy tokens of the base with ``adapter`` merged into it, one process, no vLLM."""
    model = tiny_base()
    for path, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and adapter.config.targets(path):
            a, b = (adapter.tensors[f"base_model.model.{path}.lora_{matrix}.weight"] for matrix in "AB")
            layer.weight.data += adapter.config.scaling_of(path) * (b @ a)
    return [greedy(model, prompt) for prompt in PROMPTS]


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    token_ids = list(prompt)
    for _ in range(8):
        token_ids.append(int(model(torch.tensor([token_ids])).logits[0, -1].argmax()))
    return token_ids[len(prompt) :]


def answer(engine: VllmEngine) -> tuple[set[int], list[list[int]]]:
    samples = engine.generate(PROMPTS, Sampling(8))
    return {each.update_id for each in samples}, [each.token_ids for each in samples]


def test_what_one_worker_rejects_neither_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # two workers, one NUMA node
    folder = save_model(tiny_base(), tmp_path / "model")
    options = VllmOptions(
        folder, "float32", load_format="auto", kv_cache_bytes=16 << 20, max_lora_rank=16, tensor_parallel=2
    )
    engine = VllmEngine(options)
    try:
        engine.adopt()
        reject_on_one_of_two(engine)
        with pytest.raises(ConfigError, match="engines of one worker"):
            WeightSync.connect(ModuleSource(tiny_base()), ThreadClient(engine), SyncConfig("pinned"))
    finally:
        engine.close()


def reject_on_one_of_two(engine: VllmEngine) -> None:
    now = [tiny_adapter(1)]
    config = SyncConfig("pinned", 12 << 10, deadline_s=30.0)
    sync = AdapterSync.connect(lambda: now[0], ThreadClient(engine), config, num_workers=2)
    old_id = sync.update().weight_version
    assert answer(engine) == ({old_id}, merged_answer(tiny_adapter(1)))

    now[0] = tiny_adapter(2, rank=4)
    last = sync.lines[1]
    healthy, fault = last.carrier, Fault("corrupt_payload", "request", 1)
    last.carrier = FaultyCarrier(last, fault, kill_worker=lambda: None)
    with pytest.raises(UpdateRejected, match="arrived with other bytes"):
        sync.update()
    last.carrier = healthy
    assert answer(engine) == ({old_id}, merged_answer(tiny_adapter(1)))
    assert len(engine.llm.llm_engine.list_loras()) == 1

    new_id = sync.update().weight_version
    assert new_id > old_id
    assert answer(engine) == ({new_id}, merged_answer(tiny_adapter(2, rank=4)))
    sync.close()
