"""Charts of the experiment's step records, from the tables of ``tables.steps``."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from wsync_lab.plots.style import (
    PHASE_COLOURS,
    PUBLISHED_COLOUR,
    SYNC_PHASE_COLOURS,
    TRANSPORT_COLOURS,
    TRANSPORT_MARKERS,
    Chart,
    canvas,
    finish,
    legend_below,
)
from wsync_lab.tables.markdown import significant
from wsync_lab.tables.steps import phase_means, sync_phase_means, warm

_LABEL_SHARE = 0.07  # a segment narrower than this share of the axis gets no number
_BAR_HEIGHT = 0.62
P = ParamSpec("P")
Draw = Callable[Concatenate[pd.DataFrame, P], Chart]


def _drawn_from_steps(draw: Draw[P]) -> Draw[P]:
    """A run that failed in its first step still gets its report."""

    @wraps(draw)
    def chart(table: pd.DataFrame, *args: P.args, **kwargs: P.kwargs) -> Chart:
        if table.empty:
            figure, (axes,) = canvas(height=0.8)
            axes.set_axis_off()
            return finish(figure, "No step finished: nothing to draw")
        return draw(table, *args, **kwargs)

    return chart


@_drawn_from_steps
def step_time_breakdown(table: pd.DataFrame) -> Chart:
    """Mean step time of each transport, stacked by phase."""
    means = phase_means(table)
    figure, (axes,) = canvas(height=1.9 + 0.62 * len(means))
    stacked_bars(axes, means, PHASE_COLOURS)
    legend_below(figure, axes)
    axes.set_xlabel("mean time per step (s)")
    shares = means["sync"] / means.sum(axis="columns")
    parts = [f"{_percent(share)} of the step with {name}" for name, share in shares.items()]
    return finish(figure, f"Weight sync takes {', '.join(parts)}")


@_drawn_from_steps
def sync_share(table: pd.DataFrame, published: dict[str, float]) -> Chart:
    """Share of the step that the sync takes: a dot a step, the bar over all steps.

    Args:
        published: label to share, drawn beside what was measured here.
    """
    rows = warm(table)
    sums = rows.groupby("transport", sort=False)[["phase_sync_s", "wall_s"]].sum()
    shares = sums["phase_sync_s"] / sums["wall_s"]
    figure, (axes,) = canvas(height=1.5 + 0.55 * (len(shares) + len(published)))
    axes.barh(list(shares.index), shares * 100, _BAR_HEIGHT, color=PHASE_COLOURS["sync"], alpha=0.85)
    axes.barh(list(published), [100 * each for each in published.values()], _BAR_HEIGHT,
              color=PUBLISHED_COLOUR, hatch="///", edgecolor="white")  # fmt: skip
    sns.stripplot(data=rows.assign(percent=rows["sync_share"] * 100), x="percent", y="transport",
                  ax=axes, color="black", size=3.5, alpha=0.55, jitter=False)  # fmt: skip
    clear_of_dots = [*rows.groupby("transport", sort=False)["sync_share"].max(), *published.values()]
    for row, share in enumerate([*shares, *published.values()]):
        _note(axes, max(share, clear_of_dots[row]) * 100, row, _percent(share))
    num_bars = len(shares) + len(published)
    axes.set(
        xlabel="share of the step spent in weight sync (%)",
        ylabel="",
        xlim=(0, None),
        ylim=(num_bars - 0.5, -0.5),
    )
    axes.grid(visible=False, axis="y")
    return finish(figure, _share_finding(shares, published))


@_drawn_from_steps
def sync_breakdown(table: pd.DataFrame) -> Chart:
    """Mean sync time of each transport by phase: in seconds, and in per cent of its own total."""
    means = sync_phase_means(table)
    figure, (seconds, percent) = canvas(height=1.9 + 0.62 * len(means), columns=2)
    stacked_bars(seconds, means, SYNC_PHASE_COLOURS)
    legend_below(figure, seconds)
    totals = means.sum(axis="columns")
    stacked_bars(percent, means.div(totals, axis="index") * 100, SYNC_PHASE_COLOURS, totals=False)
    seconds.set_xlabel("mean time per sync (s)")
    percent.set(xlabel="share of the sync (%)", yticklabels=[], xlim=(0, 100))
    rows = means.iterrows()
    largest = [f"{row.idxmax()} ({_percent(row.max() / row.sum())}) with {name}" for name, row in rows]
    return finish(figure, f"The longest part of a sync is {', '.join(largest)}")


@_drawn_from_steps
def reward(table: pd.DataFrame) -> Chart:
    """Mean reward over the steps, a line a transport."""
    figure, (axes,) = canvas(height=3.4)
    step_lines(axes, table, "reward_mean")
    legend_below(figure, axes)
    axes.set(xlabel="step", ylabel="mean reward (0 to 1)")
    parts = [
        f"{name} {rows.iloc[0]:.2f} → {rows.iloc[-1]:.2f}" for name, rows in _series(table, "reward_mean")
    ]
    return finish(figure, f"Mean reward, first step → last: {', '.join(parts)}")


@_drawn_from_steps
def logprob_gap(table: pd.DataFrame) -> Chart:
    """Gap between the engine's and the trainer's log-probabilities over the steps, log scale.

    A gap of exactly zero has no place on a log scale: it is left out, and the title says so.
    """
    figure, (axes,) = canvas(height=3.4)
    positive = table[table["logprob_gap"].astype(float) > 0]
    step_lines(axes, positive, "logprob_gap")
    legend_below(figure, axes)
    axes.set(xlabel="step", ylabel="mean |Δ log p| (nats)", yscale="log")
    axes.set_ylim(*_whole_decades(positive["logprob_gap"].astype(float)))
    parts = [f"{name} {rows.max():.1e}" for name, rows in _series(table, "logprob_gap")]
    zeros = int((table["logprob_gap"].astype(float) == 0).sum())
    left_out = f"; {zeros} steps at exactly 0 not drawn" if zeros else ""
    return finish(figure, f"Largest gap between engine and trainer: {', '.join(parts)}{left_out}")


def stacked_bars(axes: Axes, means: pd.DataFrame, colours: dict[str, str], *, totals: bool = True) -> None:
    """A horizontal bar a row of ``means``, its columns stacked; numbers where they fit."""
    left = pd.Series(0.0, index=means.index)
    widest = means.sum(axis="columns").max()
    for name in means.columns:
        width = means[name]
        axes.barh(list(means.index), width, _BAR_HEIGHT, left=left, label=name.replace("_", "/"),
                  color=colours[name], edgecolor="white", linewidth=0.8)  # fmt: skip
        _number_segments(axes, left, width, widest, colours[name])
        left += width
    for row, total in enumerate(left if totals else ()):
        _note(axes, total, row, f"{significant(total)} s")
    axes.set(ylabel="", xlim=(0, widest * (1.12 if totals else 1)))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def step_lines(axes: Axes, table: pd.DataFrame, column: str) -> None:
    """A line a run, in the colour and with the marker of its transport."""
    for (label, key, _), rows in table.groupby(["transport", "transport_key", "run_id"], sort=False):
        axes.plot(rows["step"], rows[column], label=label, color=TRANSPORT_COLOURS[str(key)],
                  marker=TRANSPORT_MARKERS[str(key)], markersize=5, linewidth=1.6, alpha=0.85)  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _series(table: pd.DataFrame, column: str) -> list[tuple[str, "pd.Series[float]"]]:
    known = table[table[column].notna()]
    return [(str(name), rows[column].astype(float)) for name, rows in known.groupby("transport", sort=False)]


def _number_segments(
    axes: Axes, left: "pd.Series[float]", width: "pd.Series[float]", widest: float, colour: str
) -> None:
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
    for row, (start, size) in enumerate(zip(left, width, strict=True)):
        if size > _LABEL_SHARE * widest:
            axes.text(
                start + size / 2, row, significant(size), ha="center", va="center", color=ink, fontsize=9
            )


def _whole_decades(values: "pd.Series[float]") -> tuple[float, float]:
    """Limits at powers of ten around ``values``: noise within a decade looks like noise."""
    if values.empty:
        return 1e-9, 1.0
    low, high = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _note(axes: Axes, x: float, row: int, text: str) -> None:
    axes.annotate(text, (x, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10)


def _share_finding(shares: "pd.Series[float]", published: dict[str, float]) -> str:
    here = ", ".join(f"{name} {_percent(share)}" for name, share in shares.items())
    there = ", ".join(f"{_percent(share)} in {name}" for name, share in published.items())
    return f"Sync share here: {here}; published: {there}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
