"""Which way of exporting a bucket pins memory, and which sends other bytes: between two processes."""

import pytest
import torch

from wsync_lab.errors import ConfigError
from wsync_lab.pinning.harness import Outcome, run_strategy
from wsync_lab.pinning.memory import growth_bytes, rises
from wsync_lab.pinning.strategies import strategy
from wsync_lab.weights import TensorMeta

MiB = 1 << 20
BUCKET = 2 * MiB
PLAIN = [TensorMeta(f"layers.{i}.weight", "bfloat16", (MiB // 2,)) for i in range(8)]
MIXED = [
    TensorMeta(f"layers.{i // 2}.{'norm' if i % 2 else 'weight'}", dtype, (size,))
    for i, (dtype, size) in enumerate(4 * [("bfloat16", MiB // 2), ("float32", 99_999)])
]
# The report's pressure: buckets of one and two units in turn.
ALTERNATING = [TensorMeta(f"w.{i}", "uint8", (BUCKET >> (i % 2),)) for i in range(8)]


def run(name: str, tensors: list[TensorMeta], hold: int | None, num_updates: int = 3) -> Outcome:
    return run_strategy(
        name,
        tensors,
        bucket_bytes=BUCKET,
        hold=hold,
        num_updates=num_updates,
        device=torch.device("cpu"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("hold", [4, None])
def test_a_fresh_tensor_pins_a_bucket_a_bucket_while_the_engine_holds_it(hold: int | None) -> None:
    seen = run("fresh", PLAIN, hold)
    assert (seen.num_stale, seen.num_nans) == (0, 0)
    assert rises(seen.worker_bytes, BUCKET) == (hold is None)
    kept = seen.worker_bytes[-1] - seen.worker_bytes[0]
    expected = (len(seen.worker_bytes) - 1 if hold is None else hold) * BUCKET
    assert abs(kept - expected) <= BUCKET


@pytest.mark.slow
@pytest.mark.parametrize("hold", [4, None])
def test_a_staged_buffer_is_flat_whatever_the_engine_holds(hold: int | None) -> None:
    seen = run("staged", PLAIN, hold)
    assert (seen.num_stale, seen.num_nans) == (0, 0)
    assert not rises(seen.worker_bytes, BUCKET)
    assert max(seen.worker_bytes) - seen.worker_bytes[0] < BUCKET
    assert not rises(seen.trainer_bytes, BUCKET)


@pytest.mark.slow
def test_a_buffer_that_grows_leaves_what_it_outgrew() -> None:
    grown, staged = (run(name, ALTERNATING[1:], hold=None, num_updates=1) for name in ("grow", "staged"))
    assert (grown.num_stale, staged.num_stale) == (0, 0)
    assert max(grown.worker_bytes) - max(staged.worker_bytes) > BUCKET // 3


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(5))
def test_one_buffer_for_all_dtypes_sends_bytes_of_another(repeat: int) -> None:
    seen = run("staged_by_flat_dtype", MIXED, hold=0, num_updates=1)
    assert seen.num_stale > 0
    right = run("staged", MIXED, hold=0, num_updates=1)
    assert (right.num_stale, right.num_nans) == (0, 0)


def test_memory_that_fills_up_and_stays_does_not_rise() -> None:
    assert not rises([0, 1, 2, 3, 4, 4, 4, 4, 4, 4], 1)
    assert rises([MiB * i for i in range(10)], MiB)
    assert growth_bytes([3 * i for i in range(10)]) == pytest.approx(3)
    assert growth_bytes([7]) == 0


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown strategy 'hope': choose one of fresh, staged"):
        strategy("hope", {}, torch.device("cpu"))
