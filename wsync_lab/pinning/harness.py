"""One strategy, bucket after bucket, between two processes: memory, and what arrived."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import multiprocessing

from wsync_lab.bench.payloads import initial_values
from wsync_lab.digest import tensor_digest
from wsync_lab.packing import as_bytes
from wsync_lab.pinning.bound import buckets, staging_bytes
from wsync_lab.pinning.consumer import consume
from wsync_lab.pinning.memory import shared_bytes
from wsync_lab.pinning.strategies import strategy
from wsync_lab.weights import TensorMeta


@dataclass
class Outcome:
    """What was seen, a sample a bucket.

    Attributes:
        num_stale: tensors that arrived with other bytes than were sent.
        num_nans: values that became NaN: none is sent.
    """

    trainer_bytes: list[int] = field(default_factory=list)
    worker_bytes: list[int] = field(default_factory=list)
    bucket_times_s: list[float] = field(default_factory=list)
    num_stale: int = 0
    num_nans: int = 0


def run_strategy(
    name: str,
    tensors: Sequence[TensorMeta],
    *,
    bucket_bytes: int,
    hold: int | None,
    num_updates: int,
    device: torch.device,
) -> Outcome:
    """Send all buckets of ``num_updates`` updates; every tensor changes between them."""
    weights = initial_values(tuple(tensors), device)
    for tensor in weights.values():
        tensor.copy_(torch.rand(tensor.shape, device=device).to(tensor.dtype))  # no NaN among them
    made = strategy(name, staging_bytes(tensors, bucket_bytes), device)
    outcome = Outcome()
    with _engine(hold, device) as (requests, replies):
        for _ in range(num_updates):
            for tensor in weights.values():
                as_bytes(tensor).bitwise_xor_(1)  # other bytes, and still no NaN
            for groups in buckets(tensors, bucket_bytes):
                metas = [group for _, group in groups]
                sources = [(dtype, [weights[meta.name] for meta in group]) for dtype, group in groups]
                start_s = time.perf_counter()
                requests.put((made.flatten(sources), metas))
                _note(outcome, replies.get(), sources, device)
                outcome.bucket_times_s.append(time.perf_counter() - start_s)
    return outcome


def _note(
    outcome: Outcome, seen: Any, sources: Sequence[tuple[str, list[torch.Tensor]]], device: torch.device
) -> None:
    digests, nans, worker_bytes = seen
    sent = [tensor_digest(tensor) for _, group in sources for tensor in group]
    outcome.num_stale += sum(here != there for here, there in zip(sent, digests, strict=True))
    outcome.num_nans += nans
    outcome.trainer_bytes.append(shared_bytes(device))
    outcome.worker_bytes.append(worker_bytes)


@contextmanager
def _engine(hold: int | None, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """The queues of a consumer process, whose payloads travel as torch shares tensors."""
    context = multiprocessing.get_context("spawn")
    requests, replies = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=consume, args=(requests, replies, hold, device.type), daemon=True)
    process.start()
    try:
        yield requests, replies
    finally:
        requests.put(None)
        process.join(10)
        process.kill()
