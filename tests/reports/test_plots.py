"""Charts: legible without colour vision, reproducible, and never a crash for want of steps."""

from itertools import combinations

import pytest

from tests.reports.made_records import step_record
from wsync_lab.config import TRANSPORT_NAMES
from wsync_lab.plots import steps as charts
from wsync_lab.plots import style
from wsync_lab.records import PHASES, SYNC_PHASES
from wsync_lab.reports.from_records import step_charts
from wsync_lab.tables.published import read_published
from wsync_lab.tables.steps import steps

ROLL = read_published()["alibaba/ROLL#485"]


def test_every_phase_and_transport_has_its_own_colour() -> None:
    assert tuple(style.PHASE_COLOURS) == PHASES
    assert tuple(style.SYNC_PHASE_COLOURS) == SYNC_PHASES
    assert tuple(style.TRANSPORT_COLOURS) == tuple(style.TRANSPORT_MARKERS) == TRANSPORT_NAMES
    assert len(set(style.TRANSPORT_MARKERS.values())) == len(TRANSPORT_NAMES)


@pytest.mark.parametrize("colours", [style.PHASE_COLOURS, style.TRANSPORT_COLOURS, style.SYNC_PHASE_COLOURS])
def test_colours_stay_apart_for_a_reader_without_red_cones(colours: dict[str, str]) -> None:
    for one, other in combinations(colours.values(), 2):
        assert _distance(_as_seen_by_protanopes(one), _as_seen_by_protanopes(other)) > 25, (one, other)


def test_titles_state_what_the_records_say() -> None:
    table = steps([step_record("cpu"), step_record("pinned")])
    warm = table[table["step"] > 1]
    shares = {
        name: rows["phase_sync_s"].sum() / rows["wall_s"].sum() for name, rows in warm.groupby("transport")
    }
    finding = charts.step_time_breakdown(table).finding
    assert f"{shares['cpu']:.0%} of the step with cpu" in finding
    assert f"{shares['pinned (memfd)']:.1%} of the step with pinned (memfd)" in finding
    assert (
        "17% in alibaba/ROLL#485"
        in charts.sync_share(table, {ROLL.key: ROLL.value("weight_sync_share")}).finding
    )


def test_the_same_records_give_the_same_bytes() -> None:
    record = step_record("cpu")
    first, second = (step_charts([record], ROLL) for _ in range(2))
    assert [chart.svg() for chart in first] == [chart.svg() for chart in second]


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_run_that_hardly_started_is_drawn(num_steps: int) -> None:
    drawn = step_charts([step_record("cpu", num_steps=num_steps, error="gone")], ROLL)
    assert all("<svg" in chart.svg() for chart in drawn)


def test_gaps_of_zero_or_unknown_are_not_lost_in_silence() -> None:
    record = step_record("cpu", num_steps=3)
    record["steps"][1]["logprob_gap"] = 0.0
    record["steps"][2]["logprob_gap"] = None
    chart = charts.logprob_gap(steps([record]))
    assert "1 steps at exactly 0 not drawn" in chart.finding
    assert "<svg" in chart.svg()


def _as_seen_by_protanopes(colour: str) -> tuple[float, ...]:
    """Viénot, Brettel and Mollon (1999), in linear RGB from 0 to 255."""
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    mixed = 0.11238 * red + 0.88762 * green
    return mixed, mixed, 0.00401 * red - 0.00401 * green + blue


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
