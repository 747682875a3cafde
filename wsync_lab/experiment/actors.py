"""The roles of the experiment, as plain classes; ``cluster`` runs them in Ray actors."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from wsync_lab.engines.base import Completion, Engine, Sampling
from wsync_lab.experiment import task
from wsync_lab.experiment.client import RayEngineClient
from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.grpo import group_advantages, grpo_loss, k3
from wsync_lab.experiment.megatron import MegatronPolicy
from wsync_lab.experiment.policies import FullPolicy, LoraPolicy, Policy
from wsync_lab.experiment.policy import build_policy, completion_logprobs
from wsync_lab.protocol.job import JobSync, PairSync
from wsync_lab.protocol.phases import SyncReport


@dataclass(frozen=True)
class Rollout:
    """The samples of one pair in one step, grouped by prompt.

    Attributes:
        tokens: (samples, prompt + completion) token ids.
        engine_logprobs: (samples, completion), under the engine's weights.
        weight_version: the version that sampled them: the weights', or the adapter's update_id.
    """

    tokens: torch.Tensor
    engine_logprobs: torch.Tensor
    weight_version: int


@dataclass(frozen=True)
class TrainResult:
    """Of one rank's samples: mean |engine - trainer| log-probability, and k3 of the two."""

    loss: float
    logprob_gap: float
    kl_k3: float


def merged(rollouts: Sequence[Rollout]) -> Rollout:
    """The samples of all pairs as one."""
    (version,) = {each.weight_version for each in rollouts}
    tokens = torch.cat([each.tokens for each in rollouts])
    return Rollout(tokens, torch.cat([each.engine_logprobs for each in rollouts]), version)


class EngineActor:
    """One inference engine, which trainers and the loop call through ``call``."""

    def __init__(self, config: ExperimentConfig, folder: str) -> None:
        self._engine = _open_engine(config, Path(folder))

    def call(self, method: str, *args: Any) -> Any:
        """``method`` of the engine; see ``engines.base.Engine``."""
        return getattr(self._engine, method)(*args)

    def rollout(self, prompts: list[list[int]], sampling: Sampling) -> Rollout:
        completions = self._engine.generate(prompts, sampling)
        tokens = [prompts[each.prompt_index] + each.token_ids for each in completions]
        logprobs = torch.tensor([each.logprobs for each in completions])
        return Rollout(torch.tensor(tokens), logprobs, _version(completions))

    def adopt(self) -> str:
        """Serve the initial policy, which the engine loaded itself; see ``Engine.adopt``."""
        return self._engine.adopt()


class TrainerActor:
    """One trainer rank: a shard of the policy, its optimiser, and the sync to its engine."""

    def __init__(self, config: ExperimentConfig, rank: int) -> None:
        self._config, self._rank = config, rank
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._sync: PairSync | None = None

    def free_port(self) -> int:
        """A port for the trainers' rendezvous, on this actor's host."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def join(self, port: int) -> None:
        """Form the process group of all trainer ranks."""
        backend = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
        address = f"tcp://127.0.0.1:{port}"
        size = self._config.num_trainers
        dist.init_process_group(backend, init_method=address, rank=self._rank, world_size=size)
        self._mesh: DeviceMesh = init_device_mesh(self._device.type, (size,))

    def reset(self) -> None:
        """Start again from the initial policy."""
        self._policy = self._build_policy()
        self._optimizer = torch.optim.Adam(self._policy.trained(), lr=self._config.learning_rate)

    def connect(self, engine: Any, transport: str) -> dict[str, Any]:
        """Open ``transport`` to the engine actor, None for a rank that feeds none.

        Returns:
            what a record says of the connection.
        """
        client = None if engine is None else RayEngineClient(engine)
        self._sync, described = self._policy.connect(client, transport, self._rank)
        return described

    def disconnect(self) -> None:
        if self._sync is not None:
            self._sync.close()
        self._sync = None

    def train(self, rollout: Rollout, rewards: torch.Tensor, reference: torch.Tensor) -> TrainResult:
        """One optimiser step; gap and KL are of the weights before it."""
        tokens = rollout.tokens.to(self._device)
        logprobs = completion_logprobs(self._policy.module, tokens, self._config.prompt_tokens)
        advantages = group_advantages(rewards.view(-1, self._config.samples_per_prompt)).flatten()
        engine, frozen = rollout.engine_logprobs.to(logprobs), reference.to(logprobs)
        settings = self._config.clip, self._config.kl_coefficient
        loss = grpo_loss(logprobs, engine, frozen, advantages.to(logprobs), *settings)
        loss.backward()
        self._policy.take_gradients()
        self._optimizer.step()
        self._policy.refresh()
        gap = (engine - logprobs.detach()).abs().mean()
        return TrainResult(loss.item(), gap.item(), k3(engine, logprobs.detach()).mean().item())

    def _build_policy(self) -> Policy:
        if self._config.megatron_tp:
            return MegatronPolicy(self._config)
        kind = LoraPolicy if self._config.lora_rank else FullPolicy
        return kind(self._config, self._mesh, self._device)

    def sync(self, version: int) -> SyncReport:
        """One update of all pairs; see ``protocol.job.JobSync``."""
        assert self._sync is not None
        return JobSync(self._sync).update(version)


class ReferenceActor:
    """The frozen initial policy."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._policy, self._prompt_tokens = build_policy(config), config.prompt_tokens

    @torch.no_grad()
    def logprobs(self, rollouts: Sequence[Rollout]) -> list[torch.Tensor]:
        """(samples, completion) for each rollout."""
        return [completion_logprobs(self._policy, each.tokens, self._prompt_tokens) for each in rollouts]


class RewardActor:
    """Scores completions by the task's rule."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._prompt_tokens = config.prompt_tokens

    def score(self, rollouts: Sequence[Rollout]) -> list[torch.Tensor]:
        """(samples,) for each rollout."""
        return [torch.tensor([self._reward(row) for row in each.tokens.tolist()]) for each in rollouts]

    def _reward(self, tokens: list[int]) -> float:
        return task.reward(tokens[: self._prompt_tokens], tokens[self._prompt_tokens :])


def _open_engine(config: ExperimentConfig, folder: Path) -> Engine:
    if config.engine == "plain":
        from wsync_lab.engines.plain import PlainEngine

        return PlainEngine(build_policy(config))
    from wsync_lab.engines.vllm.engine import VllmEngine, VllmOptions

    length = config.prompt_tokens + config.max_tokens
    options = VllmOptions(
        folder,
        config.dtype,
        load_format="auto" if config.lora_rank else "dummy",
        max_model_len=max(64, length),
        seed=config.seed,
        max_lora_rank=config.lora_rank,
    )
    return VllmEngine(options)


def _version(completions: list[Completion]) -> int:
    (version,) = {each.update_id or each.weight_version for each in completions}
    return version
