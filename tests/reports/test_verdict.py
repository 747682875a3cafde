"""Verdicts: their numbers come from the records, and what is wrong comes first."""

import pytest

from tests.reports.made_records import step_record
from wsync_lab.reports.provenance import provenance_of
from wsync_lab.reports.verdict import step_verdict
from wsync_lab.tables.published import read_published
from wsync_lab.tables.steps import summary

ROLL = read_published()["alibaba/ROLL#485"]
BOUND = 1e-3


@pytest.mark.parametrize("seed", [1, 2])
def test_the_headline_compares_the_fastest_with_the_slowest(seed: int) -> None:
    records = [step_record("cpu", seed=seed), step_record("pinned", seed=seed)]
    cpu, pinned = summary(records)["sync_s"]
    verdict = step_verdict(records, ROLL, BOUND)
    assert verdict.ok
    assert verdict.headline.startswith(
        f"pinned (memfd) syncs {cpu / pinned:.2f}x as fast as cpu: {pinned:.3f} s"
    )


def test_the_published_figures_stand_beside_with_both_payloads() -> None:
    text = step_verdict([step_record("cpu")], ROLL, BOUND).markdown()
    assert (
        "103 s for a sync of 6.2 GB, 17% of a step of about 606 s (derived). The payload here: 3.20 MB"
        in text
    )


def test_a_failed_run_comes_first_and_is_not_compared() -> None:
    records = [step_record("cpu"), step_record("pinned", num_steps=2, error="PeerLost: <worker> 1\nis gone")]
    verdict = step_verdict(records, ROLL, BOUND)
    assert not verdict.ok
    assert verdict.headline == "FAILED after 2 steps: pinned (memfd): `PeerLost: <worker> 1 is gone`"
    assert "Apart from that, cpu syncs in" in verdict.details[0]


def test_when_every_run_failed_nothing_is_claimed() -> None:
    verdict = step_verdict([step_record("cpu", num_steps=0, error="gone")], ROLL, BOUND)
    assert "no run came to its end" in verdict.markdown()


def test_a_large_gap_means_wrong_weights() -> None:
    record = step_record("cpu")
    record["steps"][4]["logprob_gap"] = 0.37
    verdict = step_verdict([record], ROLL, BOUND)
    assert not verdict.ok
    assert verdict.headline.startswith("WRONG WEIGHTS with cpu: log-probability gap 3.7e-01")


def test_an_unmeasured_gap_is_said() -> None:
    record = step_record("cpu", num_steps=2)
    for step in record["steps"]:
        step["logprob_gap"] = None
    assert "No log-probability gap was recorded" in step_verdict([record], ROLL, BOUND).markdown()


def test_provenance_shows_differing_values_side_by_side() -> None:
    records = [step_record("cpu"), step_record("pinned", seed=1)]
    records[1]["provenance"]["seccomp_mode"] = 2
    text = provenance_of(records)
    assert "seccomp mode 0, pidfd_getfd ok" in text
    assert "seccomp mode 2, pidfd_getfd ok" in text
    assert text.count("no GPU; 2 x made-up") == 1
