"""Chart of the correctness records: a cell a transport and layout."""

import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap

from wsync_lab.plots.style import Chart, canvas, finish
from wsync_lab.tables.correctness import DIFFERENT, EQUAL, FAILED, UNAVAILABLE

# Okabe and Ito's green, grey, orange, vermilion; the words say it too.
_COLOURS = {EQUAL: "#009E73", UNAVAILABLE: "#DDDDDD", FAILED: "#E69F00", DIFFERENT: "#D55E00"}


def outcome_map(table: pd.DataFrame) -> Chart:
    """``tables.correctness.outcomes``, coloured by word."""
    words = list(_COLOURS)
    codes = table.map(words.index)
    figure, (axes,) = canvas(height=1.4 + 0.42 * len(table))
    colours = ListedColormap(list(_COLOURS.values()))
    sns.heatmap(codes, annot=table, fmt="", cmap=colours, vmin=0, vmax=len(words) - 1, cbar=False,
                linewidths=2, annot_kws={"fontsize": 8}, ax=axes)  # fmt: skip
    axes.set(xlabel="", ylabel="")
    axes.tick_params(axis="x", rotation=20)
    axes.tick_params(axis="y", rotation=0)
    return finish(figure, _finding(table))


def _finding(table: pd.DataFrame) -> str:
    equal, runs = int((table == EQUAL).sum().sum()), int((table != UNAVAILABLE).sum().sum())
    return f"Every byte arrived in {equal} of the {runs} combinations that run here"
