"""Chart of the pinning records: shared memory against buckets, a panel a number of held ones."""

from collections.abc import Mapping

import pandas as pd
import seaborn as sns

from wsync_lab.plots.style import Chart, canvas, finish, legend_below

# Okabe and Ito's; what is right is blue.
_COLOURS: Mapping[str, str] = {
    "fresh": "#D55E00",
    "staged": "#0072B2",
    "staged_by_flat_dtype": "#E69F00",
    "grow": "#CC79A7",
}


def memory_by_bucket(table: pd.DataFrame) -> Chart:
    """``tables.pinning.samples``: the worker's shared memory, small multiples by ``hold``."""
    panels = list(dict.fromkeys(table["hold"]))
    figure, axes = canvas(height=3.2, columns=len(panels))
    for hold, panel in zip(panels, axes, strict=True):
        rows = table[table["hold"] == hold]
        lines = {"palette": dict(_COLOURS), "markers": True, "dashes": False, "legend": panel is axes[0]}
        sns.lineplot(rows, x="bucket", y="worker_MB", hue="strategy", style="strategy", ax=panel, **lines)
        panel.set(title=f"engine holds {hold}", xlabel="bucket", ylabel="shared memory (MB)", ylim=(0, None))
    legend_below(figure, axes[0])
    if legend := axes[0].get_legend():
        legend.remove()
    return finish(figure, _finding(table))


def _finding(table: pd.DataFrame) -> str:
    last = table[(table["hold"] == "all")].groupby("strategy", sort=False)["worker_MB"].last()
    if not {"fresh", "staged"} <= set(last.index):
        return "Shared memory of the engine, by strategy"
    fresh, staged = last["fresh"], last["staged"]
    return f"Held for good: fresh tensors end at {fresh:.0f} MB, a staged buffer at {staged:.0f} MB"
