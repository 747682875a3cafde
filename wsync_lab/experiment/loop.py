"""The RL loop of one transport: rollout, reward, reference, train, sync."""

from collections.abc import Iterator
from typing import Any

import torch

from wsync_lab.engines.base import Sampling
from wsync_lab.experiment.actors import Rollout, TrainResult, merged
from wsync_lab.experiment.cluster import Cluster, gather
from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.task import make_prompts
from wsync_lab.lora.manifest import next_update_id
from wsync_lab.protocol.phases import SYNC_PHASES, SyncReport
from wsync_lab.timing import PhaseTimer

_SEEDS_PER_STEP = 1 << 16  # more samples than a step ever draws


class StepLoop:
    """Runs steps on a cluster whose trainers are connected; ``version`` is the engines'."""

    def __init__(self, config: ExperimentConfig, cluster: Cluster, version: int) -> None:
        self._config, self._cluster = config, cluster
        self.version = version

    def sync(self) -> SyncReport:
        """Update every engine; the report of the slowest pair."""
        adapters = self._config.lora_rank > 0
        version = next_update_id(self.version) if adapters else self.version + 1
        reports: list[SyncReport] = gather([t.sync.remote(version) for t in self._cluster.trainers])
        self.version = version
        return max(reports, key=lambda report: report.sync_time_s)

    def warm_up(self) -> None:
        """An engine's very first generation takes seconds: it belongs to no step."""
        self._rollout(0)

    def steps(self) -> Iterator[dict[str, Any]]:
        """One record of ``steps`` after another; see ``records.Step``."""
        for step in range(1, self._config.num_steps + 1):
            yield self._step(step)

    def _step(self, step: int) -> dict[str, Any]:
        timer = PhaseTimer()
        with timer.phase("rollout"):
            rollouts = self._rollout(step)
        with timer.phase("reward"):
            (rewards,) = gather([self._cluster.reward.score.remote(rollouts)])
        with timer.phase("reference"):
            (reference,) = gather([self._cluster.reference.logprobs.remote(rollouts)])
        with timer.phase("train"):
            batches = self._batches(rollouts, rewards, reference)
            pairs = zip(self._cluster.trainers, batches, strict=True)
            results = gather([trainer.train.remote(*batch) for trainer, batch in pairs])
        synced = self._timed_sync(step, timer)
        wall_s, times_s = timer.stop()
        measured = {"step": step, "weight_version": self.version, "wall_s": wall_s, "phase_times_s": times_s}
        return measured | synced | _quality(results, rewards, rollouts)

    def _rollout(self, step: int) -> list[Rollout]:
        config, num_pairs = self._config, len(self._cluster.engines)
        seed = (config.seed + 1) * (config.num_steps + 1) + step
        prompts = make_prompts(config.prompts_per_step, config.prompt_tokens, config.vocab_size, seed)
        share = config.prompts_per_step // num_pairs
        calls = []
        for pair, engine in enumerate(self._cluster.engines):
            first = seed * _SEEDS_PER_STEP + pair * share * config.samples_per_prompt
            sampling = Sampling(config.max_tokens, 1.0, config.samples_per_prompt, first)
            calls.append(engine.rollout.remote(prompts[pair * share : (pair + 1) * share], sampling))
        return gather(calls)

    def _batches(self, rollouts: list[Rollout], *of_samples: list[Any]) -> list[tuple[Any, ...]]:
        """What each trainer rank trains on: its pair's samples, or, where an adapter is sharded, all."""
        if not self._config.megatron_tp:
            return list(zip(rollouts, *of_samples, strict=True))
        everything = merged(rollouts), *(torch.cat(list(each)) for each in of_samples)
        return [everything] * self._config.num_trainers

    def _timed_sync(self, step: int, timer: PhaseTimer) -> dict[str, Any]:
        """The sync, its pause and resume counted apart."""
        if step in self._config.skip_sync_at:
            timer.add("sync", 0.0)
            timer.add("pause_resume", 0.0)
            return _sync_fields(dict.fromkeys(SYNC_PHASES, 0.0), 0.0, 0.0, 0.0)
        with timer.phase("sync"):
            report = self.sync()
        idle_s = report.pause_s + report.resume_s
        timer.add("sync", -idle_s)
        timer.add("pause_resume", idle_s)
        return _sync_fields(report.phase_times_s, report.sync_time_s, report.pause_s, report.resume_s)


def _sync_fields(
    phase_times_s: dict[str, float], sync_time_s: float, pause_s: float, resume_s: float
) -> dict[str, Any]:
    return {
        "sync_phase_times_s": phase_times_s,
        "sync_time_s": sync_time_s,
        "pause_s": pause_s,
        "resume_s": resume_s,
    }


def _quality(results: list[TrainResult], rewards: list[Any], rollouts: list[Rollout]) -> dict[str, Any]:
    """Means over the pairs, which have equally many samples."""
    return {
        "rollout_weight_version": min(rollout.weight_version for rollout in rollouts),
        "reward_mean": sum(reward.mean().item() for reward in rewards) / len(rewards),
        "loss": sum(result.loss for result in results) / len(results),
        "logprob_gap": sum(result.logprob_gap for result in results) / len(results),
        "kl_k3": sum(result.kl_k3 for result in results) / len(results),
    }
