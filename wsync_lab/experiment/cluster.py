"""A Ray instance of this run's own, with every actor placed on its slot."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from wsync_lab.engines.tiny import save_model
from wsync_lab.errors import PeerLost, WsyncError
from wsync_lab.experiment import actors
from wsync_lab.experiment.client import in_one_line, original
from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.placement import Placement
from wsync_lab.experiment.policy import build_policy

_OBJECT_STORE_BYTES = 256 << 20
_START_TIMEOUT_S = 300.0
# Ray gives a node's agent 15 s to start, which a busy host with few cores can miss.
_START_ATTEMPTS = 3


@dataclass(frozen=True)
class Cluster:
    """Handles on the actors of one run; a pair's trainers and its engine share a slot."""

    trainers: list[Any]
    engines: list[Any]
    reference: Any
    reward: Any

    def engine_of(self, rank: int) -> Any:
        """The engine that trainer ``rank`` feeds: the first rank of each pair has one, else None."""
        pair, place = divmod(rank, len(self.trainers) // len(self.engines))
        return self.engines[pair] if place == 0 else None


def gather(calls: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
    """The values of remote calls, all waited for, so that none is left running.

    Raises:
        WsyncError: the first failure, with its own type where it is one of the package's.
    """
    ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
    try:
        values: list[Any] = ray.get(list(calls), timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        raise original(error) from None
    except ray.exceptions.RayActorError as error:
        raise PeerLost(f"an actor is gone: {in_one_line(error)}") from None
    except ray.exceptions.GetTimeoutError:
        raise WsyncError(f"an actor did not answer within {timeout_s} s") from None
    return values


@contextmanager
def running_cluster(config: ExperimentConfig, placement: Placement) -> Iterator[Cluster]:
    """Start Ray, place and start all actors; stop everything afterwards, whatever happened."""
    with tempfile.TemporaryDirectory(prefix="wsync-model-") as folder, _running_ray(placement):
        save_model(build_policy(config), Path(folder))
        cluster = _place(config, placement, folder)
        try:
            _start(cluster)
            yield cluster
        finally:
            _close(cluster)


def _place(config: ExperimentConfig, placement: Placement, folder: str) -> Cluster:
    group = placement_group(placement.bundles())
    ray.get(group.ready(), timeout=_START_TIMEOUT_S)

    def on_slot(slot: int, role: Callable[..., Any], *args: Any) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=slot)
        options = placement.actor_options() | {"scheduling_strategy": strategy}
        return ray.remote(role).options(**options).remote(*args)

    pairs = range(placement.num_pairs)
    services = placement.num_pairs
    return Cluster(
        trainers=[
            on_slot(rank // placement.trainers_per_pair, actors.TrainerActor, config, rank)
            for rank in range(config.num_trainers)
        ],
        engines=[on_slot(pair, actors.EngineActor, config, folder) for pair in pairs],
        reference=on_slot(services, actors.ReferenceActor, config),
        reward=on_slot(services, actors.RewardActor, config),
    )


def _start(cluster: Cluster) -> None:
    (port,) = gather([cluster.trainers[0].free_port.remote()], _START_TIMEOUT_S)
    joining = [trainer.join.remote(port) for trainer in cluster.trainers]
    engines = [engine.call.remote("describe") for engine in cluster.engines]
    gather([*joining, *engines], _START_TIMEOUT_S)


def _close(cluster: Cluster) -> None:
    """Let the engines end their own processes before their actors are killed."""
    closing = [engine.call.remote("close") for engine in cluster.engines]
    ray.wait(closing, num_returns=len(closing), timeout=30)


@contextmanager
def _running_ray(placement: Placement) -> Iterator[None]:
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            _init_ray(placement)
            break
        except Exception as error:  # Ray raises a plain Exception
            ray.shutdown()
            if attempt == _START_ATTEMPTS:
                raise WsyncError(f"Ray did not start in {attempt} attempts: {in_one_line(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _init_ray(placement: Placement) -> None:
    ray.init(
        **placement.cluster_resources(),
        num_gpus=torch.cuda.device_count(),
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        address="local",
    )
