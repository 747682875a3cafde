"""What every inference engine does around a weight update, and before it generates.

An update: pause, one RPC to the worker, reset of the prefix cache, commit at the gate, resume.
"""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wsync_lab.channel.messages import Begin, Prepared, SlotFree, Started, decode
from wsync_lab.engines.adapters import ServesAdapters
from wsync_lab.errors import ConfigError
from wsync_lab.protocol.gate import WeightGate

_STALE_CACHE = "the prefix cache holds blocks that are in use: no request may run during an update"


@dataclass(frozen=True)
class Sampling:
    """How to sample: ``temperature`` 0 is greedy; ``seed`` None is the engine's own stream.

    Sample ``i`` of prompt ``p`` draws from seed ``seed + p * n + i``.

    Raises:
        ConfigError: a value is out of range, or greedy output is asked for more than once.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    n: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.n < 1 or self.temperature < 0:
            raise ConfigError(f"{self}: max_tokens and n start at 1, temperature at 0")
        if self.n > 1 and self.temperature == 0:
            raise ConfigError(f"n is {self.n} at temperature 0: all samples would be the same")

    def seed_of(self, prompt_index: int) -> int | None:
        """Seed of the first sample of a prompt."""
        return None if self.seed is None else self.seed + prompt_index * self.n


@dataclass(frozen=True)
class Completion:
    """One sample: tokens, their log-probabilities at temperature 1, and what generated them.

    ``update_id`` is that of the adapter, 0 for the base weights alone.
    """

    prompt_index: int
    token_ids: list[int]
    logprobs: list[float]
    weight_version: int
    update_id: int = 0


class Engine(ServesAdapters):
    """The trainer's and the rollout's only way to an inference engine.

    ``generate`` refuses, without calling the engine, unless one complete version is live.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = WeightGate()
        self._updating = self._ended = False
        self._pause_s = 0.0
        self._outcome: dict[str, Any] = {}

    def adopt(self) -> str:
        """Serve the weights that the engine holds from its start, as version 0.

        Returns:
            their ``lora.base.base_digest``.

        Raises:
            ConfigError: they are dummies, or an update took their place.
        """
        digest = self._own_digest()
        self.gate.adopt()
        self._workers("adopt", digest)
        return digest

    def attach(self, address: str) -> None:
        """Connect the worker to the trainer that listens at ``address``; see ``WorkerEndpoint``.

        Waits for an update that is being served: one whose trainer was lost ends at once.
        """
        with self._serving:
            self._settle()
            self._worker("attach", address)

    def detach(self) -> None:
        """Close the worker's channel; an update under way fails."""
        self._worker("detach")
        self._ended = self._updating
        self._settle()

    def serve(self) -> dict[str, Any]:
        """Take part in one update over the channel.

        Returns:
            ``committed``, ``reason``, ``weight_version``, ``touched``, ``pause_s``, ``resume_s``
            and ``apply_s``, as ``outcome`` does.
        """
        with self._serving:
            self._pause()
            self._fenced_on_error(lambda: self._finish(self._worker("serve")))
            return self.outcome()

    def handle(self, message: bytes, payload: bytes | None = None) -> bytes:
        """One message of an update that travels as one RPC a message; returns the reply."""
        self._settle()
        if not self._updating and isinstance(decode(message), Begin):
            self._pause()
        reply: bytes = self._fenced_on_error(lambda: self._worker("handle", message, payload))
        self._ended = self._updating and not isinstance(decode(reply), Started | SlotFree | Prepared)
        return reply

    def outcome(self) -> dict[str, Any]:
        """How the last update ended; see ``serve``."""
        self._settle()
        return dict(self._outcome)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """``sampling.n`` completions a prompt, in the order of ``prompts`` (token ids).

        Raises:
            EngineFenced: no complete version of the weights is live; the engine is not called.
        """
        self._settle()
        self.gate.check()
        with self._generating:
            self.gate.check()  # an update may have come, and failed, since
            self._check_adapter()
            return self._generate(prompts, sampling)

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """``engine``, ``engine_version``, ``device``, ``dtype`` and ``apply_path``, for records."""

    @abstractmethod
    def close(self) -> None:
        """End the engine and its processes."""

    @abstractmethod
    def _own_digest(self) -> str:
        """``lora.base.base_digest`` of the weights that the engine started with."""

    @abstractmethod
    def _reset_prefix_cache(self) -> bool:
        """Forget what was computed with older weights; False if the engine could not."""

    @abstractmethod
    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]: ...

    def _worker(self, method: str, *args: Any) -> Any:
        """One RPC: ``method`` of the worker's ``WorkerEndpoint``."""
        (value,) = self._workers(method, *args)
        return value

    def _pause(self) -> None:
        """Refuse new requests, wait for running ones."""
        start = time.perf_counter()
        self.gate.begin_update()
        self._generating.acquire()
        self._updating = True
        self._pause_s = time.perf_counter() - start

    def _settle(self) -> None:
        """Leave an update whose last message was handled."""
        if self._ended:
            self._ended = False
            self._fenced_on_error(lambda: self._finish(self._worker("outcome")))

    def _finish(self, worker: dict[str, Any]) -> None:
        """Publish the worker's outcome at the gate, and resume."""
        start = time.perf_counter()
        committed, reason = worker["committed"], worker["reason"]
        if committed and not self._reset_prefix_cache():
            committed, reason = False, _STALE_CACHE
        if committed:
            self.gate.commit(worker["weight_version"])
            self._base_was_replaced()
        elif worker["touched"]:
            self.gate.fence(reason)
        else:
            self.gate.cancel()
        self._resume()
        times = {"pause_s": self._pause_s, "resume_s": time.perf_counter() - start}
        self._outcome = worker | times | {"committed": committed, "reason": reason}

    def _resume(self) -> None:
        self._updating = False
        self._generating.release()

    def _fenced_on_error(self, call: Any) -> Any:
        """``call()``; whatever it raises in an update leaves the engine fenced and resumed."""
        try:
            return call()
        except BaseException as error:
            if self._updating:
                self.gate.fence(f"{type(error).__name__}: {error}")
                self._resume()
            raise
