"""What step records say, in sentences whose every number comes from them or from data/published."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd

from wsync_lab.records import Record
from wsync_lab.tables.labels import transport_label
from wsync_lab.tables.markdown import inline_code, significant
from wsync_lab.tables.published import Report
from wsync_lab.tables.steps import steps, summary, warm


@dataclass(frozen=True)
class Verdict:
    """One sentence that answers the notebook's question, and what supports or limits it.

    ``ok`` is False when a run failed or the engine's weights are in doubt; a report of such a
    notebook ends with exit status 1.
    """

    headline: str
    ok: bool
    details: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        return "\n".join([f"**{self.headline}**", "", *(f"- {detail}" for detail in self.details)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[object, object]:
        data = {"text/markdown": self.markdown(), "text/plain": self.headline}
        return data, {"wsync": {"ok": self.ok}}


def step_verdict(records: Sequence[Record], published: Report, max_logprob_gap: float) -> Verdict:
    """How fast each transport syncs here, beside the published figures.

    Args:
        max_logprob_gap: in nats; a larger mean gap means a stale or wrong engine.
    """
    table = steps(records)
    wrong = list(_wrong(records, table, max_logprob_gap))
    compared = _comparison(summary([record for record in records if record["status"] == "ok"]))
    details = [*_details(records, table, max_logprob_gap), _beside(published, records)]
    if wrong:
        return Verdict("; ".join(wrong), False, [f"Apart from that, {compared}.", *details])
    return Verdict(compared, True, details)


def _wrong(records: Sequence[Record], table: pd.DataFrame, max_logprob_gap: float) -> Iterator[str]:
    for record in records:
        if record["status"] == "failed":
            done = len(record["steps"])
            label = transport_label(record["config"])
            yield f"FAILED after {done} steps: {label}: {inline_code(record['error'])}"
    for name, rows in table.groupby("transport", sort=False):
        if (gap := rows["logprob_gap"].astype(float).max()) > max_logprob_gap:
            yield f"WRONG WEIGHTS with {name}: log-probability gap {gap:.1e} above {max_logprob_gap:.0e} nats"


def _comparison(table: pd.DataFrame) -> str:
    """The fastest transport against the slowest, by mean sync time."""
    if table.empty:
        return "no run came to its end"
    timed = table.sort_values("sync_s")
    fast, slow = timed.iloc[0], timed.iloc[-1]
    if fast["transport"] == slow["transport"]:
        return f"{fast['transport']} syncs in {_cost(fast)}"
    factor = f"{significant(slow['sync_s'] / fast['sync_s'])}x as fast as {slow['transport']}"
    return f"{fast['transport']} syncs {factor}: {_cost(fast)} against {_cost(slow)}"


def _cost(row: "pd.Series[float]") -> str:
    return f"{significant(row['sync_s'])} s ({row['sync_share']:.1%} of the step)"


def _details(records: Sequence[Record], table: pd.DataFrame, max_logprob_gap: float) -> Iterator[str]:
    if table.empty:
        return
    yield _gap(table["logprob_gap"].astype(float).max(), max_logprob_gap)
    known = 1 - (table["phase_other_s"] / table["wall_s"]).max()
    yield f"The named phases explain at least {known:.1%} of every step's wall time."
    averaged = sorted(set(warm(table)["step"]))
    yield f"Averages are over steps {averaged[0]} to {averaged[-1]}."
    if all(record["provenance"].get("gpu") is None for record in records):
        yield "No GPU took part: these are times of host memory, not of a transport between GPU processes."
    if any(record["provenance"].get("emulated_placement") for record in records):
        yield "The placement is emulated: the slots of the experiment share this machine's processors."


def _gap(gap: float, bound: float) -> str:
    if math.isnan(gap):
        return "No log-probability gap was recorded: nothing here shows that the engine had the new weights."
    return f"Largest mean log-probability gap of a step: {gap:.1e} nats (bound: {bound:.0e})."


def _beside(published: Report, records: Sequence[Record]) -> str:
    payloads = sorted({record["config"].get("payload_bytes") or 0 for record in records})
    here = " and ".join(f"{significant(each / 1e6)} MB" for each in payloads)
    sync_s, share, step_s, payload_bytes = map(
        published.value, ("weight_sync_s", "weight_sync_share", "step_s", "payload_bytes")
    )
    return (
        f"Published ({published.key}; {published.setup}): {sync_s:.0f} s for a sync of "
        f"{payload_bytes / 1e9:.1f} GB, {share:.0%} of a step of about {step_s:.0f} s (derived). "
        f"The payload here: {here}."
    )
