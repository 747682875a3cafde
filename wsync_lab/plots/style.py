"""One look for every chart: colours that colour-blind readers can tell apart, fixed by name.

Categorical colours are those of Okabe and Ito (2008); the phases of a sync, which are parts of
one thing, are one hue ordered by lightness.
"""

import io
import textwrap
from dataclasses import dataclass

import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PHASE_COLOURS = {
    "rollout": "#56B4E9",
    "reward": "#F0E442",
    "reference": "#009E73",
    "train": "#0072B2",
    "sync": "#D55E00",
    "pause_resume": "#E69F00",
    "other": "#999999",
}
SYNC_PHASE_COLOURS = dict(zip(
    ("gather", "pack", "transfer", "apply", "commit"),
    ("#4A1D00", "#8F3B00", "#D55E00", "#F29A5B", "#FAD3B5"),
    strict=True,
))  # fmt: skip
TRANSPORT_COLOURS = {
    "cpu": "#000000",
    "pinned": "#0072B2",
    "cuda_ipc": "#E69F00",
    "cuda_vmm": "#009E73",
    "nccl": "#CC79A7",
}
TRANSPORT_MARKERS = {"cpu": "o", "pinned": "s", "cuda_ipc": "^", "cuda_vmm": "D", "nccl": "v"}
PUBLISHED_COLOUR = "#BBBBBB"  # hatched too: other people's numbers, not measured here

_WIDTH = 9.0  # inches, so that text has one size in every chart
_TITLE_CHARACTERS = 81  # of a bold title, on that width
_STYLE = {
    **sns.axes_style("whitegrid"),
    **sns.plotting_context("notebook", font_scale=0.9),
    "font.family": ["DejaVu Sans"],
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 12,
    "axes.edgecolor": "#666666",
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "path",  # the reader needs no font
    "svg.hashsalt": "wsync_lab",  # the same records give the same bytes
}


@dataclass(frozen=True)
class Chart:
    """A figure and the sentence that it shows, which is also its alternative text.

    A notebook displays it as SVG.
    """

    figure: Figure
    finding: str

    def svg(self) -> str:
        buffer = io.StringIO()
        with rc_context(_STYLE):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        return buffer.getvalue()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg(), "text/plain": self.finding}


def canvas(height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of its own, ``height`` inches high, and its axes side by side.

    It is not pyplot's: nothing displays it twice or keeps it alive.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def legend_below(figure: Figure, axes: Axes) -> None:
    """One legend for the figure, under it; labels that occur twice are shown once."""
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(by_label.values(), by_label.keys(), loc="outside lower left", ncols=7, frameon=False)


def finish(figure: Figure, finding: str) -> Chart:
    """Title the figure with its finding."""
    with rc_context(_STYLE):
        title = textwrap.fill(finding, _TITLE_CHARACTERS)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    for axes in figure.axes:
        sns.despine(ax=axes, left=True)
    return Chart(figure, finding)
