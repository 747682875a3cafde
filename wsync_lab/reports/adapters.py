"""What the records of adapter updates say."""

from collections.abc import Iterator, Sequence

from wsync_lab.records import Record
from wsync_lab.reports.verdict import Verdict
from wsync_lab.tables import steps, syncs
from wsync_lab.tables.faults import MIXTURE, faults, served
from wsync_lab.tables.labels import transport_label
from wsync_lab.tables.markdown import inline_code, markdown_table, percent, significant

_ENDS = 5  # steps at each end of a run that its reward is averaged over


def phase_table(records: Sequence[Record]) -> str:
    """Markdown: medians of an update of the 624 tensors, by transport."""
    table = syncs.summary([record for record in records if record["kind"] == "lora"])
    phases = ("pack", "transfer", "apply", "commit")
    milliseconds = {
        f"{name} (ms)": [significant(each * 1e3) for each in table[f"{name}_s"]] for name in phases
    }
    return markdown_table(
        {
            "transport": list(table["transport"]),
            "update (ms)": [significant(each * 1e3) for each in table["sync_s"]],
            "GB/s": [significant(each) for each in table["GBps"]],
            "x as fast as cpu": [significant(each) for each in table["vs_cpu"]],
            "spread": [percent(each) for each in table["spread"]],
            **milliseconds,
        }
    )


def fault_table(records: Sequence[Record]) -> str:
    """Markdown: what was served after each fault, by the message that it met."""
    table = served(records)
    return markdown_table({"fault": list(table.index)} | {str(name): list(table[name]) for name in table})


def adapter_verdict(records: Sequence[Record], max_logprob_gap: float) -> Verdict:
    """Whether every update was whole, and what it cost.

    Args:
        max_logprob_gap: in nats; a larger mean gap means a stale or wrong adapter.
    """
    wrong = [*_failed(records), *_partial(records), *_stale(records, max_logprob_gap)]
    details = [*_of_faults(records), *_of_runs(records), *_of_payload(records)]
    if wrong:
        return Verdict("; ".join(wrong), False, details)
    return Verdict("Every adapter that was served was whole: the old one or the new one", True, details)


def _failed(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if record["status"] == "failed":
            label = transport_label(record["config"])
            yield f"FAILED: {record['kind']} over {label}: {inline_code(record['error'])}"


def _partial(records: Sequence[Record]) -> Iterator[str]:
    table = faults(records)
    if len(table) and (count := int((table["served"] == MIXTURE).sum())):
        yield f"PARTIAL ADAPTER after {count} of {len(table)} faults"


def _stale(records: Sequence[Record], bound: float) -> Iterator[str]:
    table = steps.steps(records)
    if len(table) and (gap := table["logprob_gap"].astype(float).max()) > bound:
        yield f"WRONG ADAPTER: log-probability gap {gap:.1e} above {bound:.0e} nats"


def _of_faults(records: Sequence[Record]) -> Iterator[str]:
    table = faults(records)
    for (transport, engine), rows in table.groupby(["transport", "engine"], sort=False) if len(table) else ():
        recovered, slowest = int(rows["next_update"].sum()), significant(rows["seconds"].max())
        yield (
            f"{len(rows)} faults over {transport} into {engine}: after {recovered} the next update was "
            f"served; the slowest took the trainer {slowest} s."
        )


def _of_runs(records: Sequence[Record]) -> Iterator[str]:
    table = steps.steps(records)
    for name, rows in table.groupby("transport", sort=False) if len(table) else ():
        rewards, gap = rows["reward_mean"].astype(float), rows["logprob_gap"].astype(float).max()
        yield (
            f"{len(rows)} steps over {name}: reward {significant(rewards.head(_ENDS).mean())} in the first "
            f"{_ENDS}, {significant(rewards.tail(_ENDS).mean())} in the last {_ENDS}; sync "
            f"{rows['sync_share'].mean():.1%} of a step; largest log-probability gap {gap:.1e} nats."
        )


def _of_payload(records: Sequence[Record]) -> Iterator[str]:
    table = syncs.summary([record for record in records if record["kind"] == "lora"])
    timed = table[table["status"] == "ok"].sort_values("sync_s") if len(table) else table
    for _, row in timed.head(1).iterrows():
        size = f"{row['num_tensors']:.0f} tensors, {row['payload_bytes'] / 1e6:.0f} MB"
        factor = f"{significant(row['vs_cpu'])}x as fast as cpu"
        yield f"{size}: fastest over {row['transport']}, {significant(row['sync_s'])} s, {factor}."
