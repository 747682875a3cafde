"""Chart of the fault records: a cell a fault and message, coloured by what was served then."""

import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap

from wsync_lab.plots.style import Chart, canvas, finish
from wsync_lab.tables.faults import MIXTURE, NEW, OLD, RESTARTED

# Okabe and Ito's; the words say it too. An empty cell is white: the message cannot meet the fault.
_COLOURS = {"": "#FFFFFF", OLD: "#9AD0F0", NEW: "#009E73", RESTARTED: "#DDDDDD", MIXTURE: "#D55E00"}
_EITHER = "#5CC0B0"


def served_map(table: pd.DataFrame) -> Chart:
    """``tables.faults.served``, coloured by word."""
    words = [*_COLOURS, f"{OLD}, {NEW}"]
    codes = table.map(lambda cell: words.index(MIXTURE if MIXTURE in cell else cell))
    figure, (axes,) = canvas(height=1.4 + 0.42 * len(table))
    colours = ListedColormap([*_COLOURS.values(), _EITHER])
    sns.heatmap(codes, annot=table, fmt="", cmap=colours, vmin=0, vmax=len(words) - 1, cbar=False,
                linewidths=2, annot_kws={"fontsize": 8}, ax=axes)  # fmt: skip
    axes.set(xlabel="", ylabel="")
    axes.tick_params(axis="x", rotation=20)
    axes.tick_params(axis="y", rotation=0)
    return finish(figure, _finding(table))


def _finding(table: pd.DataFrame) -> str:
    cells = [cell for cell in table.to_numpy().ravel() if cell]
    whole = sum(MIXTURE not in cell for cell in cells)
    return f"The old adapter or the new one, whole, after {whole} of {len(cells)} faults at a message"
