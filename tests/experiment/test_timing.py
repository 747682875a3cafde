"""Phases and ``other`` add up to the wall time, whatever happens inside them."""

import time

import pytest

from wsync_lab.timing import PhaseTimer


def test_phases_and_other_add_up_to_the_wall_time() -> None:
    timer = PhaseTimer()
    for name, seconds in (("train", 0.02), ("sync", 0.01), ("train", 0.02)):
        with timer.phase(name):
            time.sleep(seconds)
    time.sleep(0.01)
    wall_s, times_s = timer.stop()
    assert sum(times_s.values()) == pytest.approx(wall_s, abs=1e-12)
    assert times_s["train"] >= 0.04
    assert times_s["other"] >= 0.01


def test_time_moves_from_one_phase_to_another() -> None:
    timer = PhaseTimer()
    timer.add("sync", 3.0)
    timer.add("sync", -1.0)
    timer.add("pause_resume", 1.0)
    assert timer.stop()[1] | {"other": 0} == {"sync": 2.0, "pause_resume": 1.0, "other": 0}


def test_a_phase_that_fails_is_counted_and_closed() -> None:
    timer = PhaseTimer()
    with pytest.raises(KeyError), timer.phase("train"):
        raise KeyError
    with timer.phase("sync"):
        pass
    assert timer.stop()[1].keys() == {"train", "sync", "other"}


def test_phases_do_not_nest() -> None:
    timer = PhaseTimer()
    with timer.phase("train"), pytest.raises(RuntimeError, match="'sync' was opened inside another"):
        timer.phase("sync").__enter__()
