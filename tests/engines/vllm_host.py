"""A process that runs vLLM engines in itself, one after another: only the first is slow to start."""

import os
import zlib
from pkgutil import resolve_name
from typing import Any

from wsync_lab.engines.base import Sampling
from wsync_lab.engines.vllm.engine import VllmEngine, VllmOptions

KV_CACHE_BYTES = 16 << 20
_LAYERWISE = "vllm.model_executor.model_loader.reload.layerwise"
_LAYERS = "vllm.model_executor.layers"
# Where vLLM is made to raise: a stage of the update, and the function whose n-th call fails.
FAILURES = {
    "begin": (_LAYERWISE, "initialize_online_processing", 9),
    "first load": (_LAYERWISE, "get_numel_loaded", 1),
    "load": (_LAYERWISE, "get_numel_loaded", 13),
    "packing": (f"{_LAYERS}.linear.UnquantizedLinearMethod", "process_weights_after_loading", 3),
    "finish": (_LAYERWISE, "_finalize_attention_layer", 1),
    "head": (
        f"{_LAYERS}.vocab_parallel_embedding.UnquantizedEmbeddingMethod",
        "process_weights_after_loading",
        2,
    ),
}

ADAPTER_FAILURES = {
    "activation": ("vllm.lora.model_manager.LRUCacheLoRAModelManager", "activate_adapter", 1),
}


def _from_files(llm: Any, folder: str, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    request = LoRARequest(folder, 1 + zlib.crc32(folder.encode()) // 2, folder)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, detokenize=False)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(inputs, sampling, use_tqdm=False, lora_request=request)
    return [list(output.outputs[0].token_ids) for output in outputs]


class VllmHost:
    """For ``ProcessEngine``: the methods of ``Engine``, on the engine that was started last."""

    def __init__(self) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # An engine that is freed takes the process groups of all others with it.
        self._started: list[Any] = []

    def start(self, options: dict[str, Any]) -> dict[str, Any]:
        self.engine = VllmEngine(VllmOptions(in_process=True, kv_cache_bytes=KV_CACHE_BYTES, **options))
        self._started.append(self.engine.llm)
        for name in ("attach", "serve", "handle", "outcome", "detach"):
            setattr(self, name, getattr(self.engine, name))
            setattr(self, f"adapter_{name}", getattr(self.engine, f"adapter_{name}"))
        for name in ("describe", "adopt", "drop_adapter"):
            setattr(self, name, getattr(self.engine, name))
        self._requests = 0
        self._count_requests()
        return self.engine.describe()

    def generate(self, prompts: list[list[int]], sampling: dict[str, Any]) -> list[dict[str, Any]]:
        return [vars(sample) for sample in self.engine.generate(prompts, Sampling(**sampling))]

    def requests(self) -> int:
        """What vLLM itself was asked to generate since the start."""
        return self._requests

    def fresh(self, options: dict[str, Any], prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Greedy output of a vLLM that loads its weights from a folder, without the adapter."""
        from vllm import LLM, SamplingParams

        llm = LLM(
            **options,
            load_format="auto",
            skip_tokenizer_init=True,
            enforce_eager=True,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
        )
        self._started.append(llm)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def fresh_adapters(
        self, options: dict[str, Any], folders: list[str], prompts: list[list[int]], max_tokens: int
    ) -> list[list[list[int]]]:
        """Greedy output of a vLLM that loads adapters from PEFT's files, one after another."""
        from vllm import LLM

        llm = LLM(
            **options,
            load_format="auto",
            skip_tokenizer_init=True,
            enforce_eager=True,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            enable_lora=True,
        )
        self._started.append(llm)
        return [_from_files(llm, folder, prompts, max_tokens) for folder in folders]

    def from_files(
        self, folders: list[str], prompts: list[list[int]], max_tokens: int
    ) -> list[list[list[int]]]:
        """The same of the engine under test, past its adapter: what evicts others from its caches."""
        return [_from_files(self.engine.llm, folder, prompts, max_tokens) for folder in folders]

    def held(self) -> int:
        """Adapters that the worker's vLLM knows."""
        return len(self.engine.llm.llm_engine.list_loras())

    def fail_once(self, stage: str) -> None:
        """Make vLLM raise at ``stage`` of the next update, after the work of that call was done."""
        path, name, call = (FAILURES | ADAPTER_FAILURES)[stage]
        owner = resolve_name(path)
        original, left = getattr(owner, name), [call]

        def failing(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                setattr(owner, name, original)
                raise RuntimeError(f"planted fault in {stage}")
            return result

        setattr(owner, name, failing)

    def _count_requests(self) -> None:
        generate = self.engine.llm.generate

        def counted(prompts: Any, *args: Any, **kwargs: Any) -> Any:
            self._requests += len(prompts)
            return generate(prompts, *args, **kwargs)

        self.engine.llm.generate = counted
