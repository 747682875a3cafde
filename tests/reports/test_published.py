"""Published figures: each has its words or its formula, and an address of its own."""

import re

import pytest

from wsync_lab.tables.published import Figure, Report, read_published

REPORTS = read_published()
FIGURES = [(report, figure) for report in REPORTS.values() for figure in report.figures]


def test_the_three_reports_are_there_with_their_addresses() -> None:
    assert {report.key: report.address for report in REPORTS.values()} == {
        "alibaba/ROLL#484": "https://github.com/alibaba/ROLL/issues/484",
        "alibaba/ROLL#485": "https://github.com/alibaba/ROLL/issues/485",
        "radixark/miles_diffusion#65": "https://github.com/radixark/miles_diffusion/pull/65",
    }


@pytest.mark.parametrize(("report", "figure"), FIGURES, ids=lambda each: getattr(each, "figure", None))
def test_a_figure_follows_from_its_words_or_its_formula(report: Report, figure: Figure) -> None:
    if figure.origin == "derived":
        values = {each.figure: each.value for each in report.figures if each.origin == "stated"}
        assert figure.value == pytest.approx(eval(figure.formula, {}, values), rel=5e-3)
    else:
        assert figure.origin == "stated"
        assert any(figure.value == pytest.approx(number) for number in _numbers(figure.quote)), figure.quote


def test_the_step_of_606_s_is_derived_and_no_phase_is_invented() -> None:
    roll = REPORTS["alibaba/ROLL#485"]
    assert {each.figure: each.origin for each in roll.figures}["step_s"] == "derived"
    assert round(roll.value("weight_sync_s") / roll.value("weight_sync_share")) == roll.value("step_s")
    assert not {"rollout_s", "train_s", "reward_s"} & {each.figure for each in roll.figures}


def _numbers(quote: str) -> set[float]:
    """Every number in ``quote``, also times the factors of its units: 6.2 GB, 17%, 260k."""
    plain = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", quote)]
    return {number * factor for number in plain for factor in (1, 0.01, 1e3, 1e6, 1e9)}
