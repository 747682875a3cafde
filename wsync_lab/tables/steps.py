"""Step records as DataFrames. Times in seconds, payloads in bytes, rates in GB/s (10^9)."""

from collections.abc import Sequence

import pandas as pd

from wsync_lab.records import PHASES, SYNC_PHASES, Record
from wsync_lab.tables.labels import transport_label
from wsync_lab.tables.markdown import inline_code

WARMUP_STEPS = 1  # left out of averages: the first generation and the first touch of memory


def steps(records: Sequence[Record]) -> pd.DataFrame:
    """One row a step: ``transport, run_id, step, wall_s, sync_time_s, sync_share, ...`` with the
    phases as ``phase_<name>_s`` and those of the sync as ``sync_<name>_s``; kind ``step`` only."""
    rows = [
        {**_identity(record), **_numbers(step)}
        for record in records
        if record["kind"] == "step"
        for step in record["steps"]
    ]
    return pd.DataFrame(rows, columns=_columns())


def warm(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``steps`` that averages are taken over.

    The first step of each run is left out, unless it is the only one.
    """
    last = table.groupby(["transport", "run_id"])["step"].transform("max")
    return table[(table["step"] > WARMUP_STEPS) | (last <= WARMUP_STEPS)]


def phase_means(table: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds a step: index ``transport`` in order of appearance, one column a phase.

    Means, not medians, so that the phases of a transport add up to its step time.
    """
    return _means(table, [f"phase_{name}_s" for name in PHASES], PHASES)


def sync_phase_means(table: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds a sync, as ``phase_means``; the phases add up to the sync time."""
    return _means(table, [f"sync_{name}_s" for name in SYNC_PHASES], SYNC_PHASES)


def summary(records: Sequence[Record]) -> pd.DataFrame:
    """One row a step record, failed ones included: what a maintainer asks first."""
    return pd.DataFrame([_summary_row(record) for record in records if record["kind"] == "step"])


def _identity(record: Record) -> dict[str, object]:
    label = transport_label(record["config"])
    return {
        "transport": label if record["status"] == "ok" else f"{label}, failed",
        "transport_key": record["config"]["transport"],
        "run_id": record["run_id"],
        "status": record["status"],
    }


def _numbers(step: Record) -> dict[str, object]:
    kept = ("step", "weight_version", "wall_s", "sync_time_s", "pause_s", "resume_s")
    metrics = ("reward_mean", "logprob_gap", "kl_k3")
    return {
        **{name: step[name] for name in (*kept, *metrics)},
        "sync_share": step["phase_times_s"]["sync"] / step["wall_s"],
        **{f"phase_{name}_s": step["phase_times_s"][name] for name in PHASES},
        **{f"sync_{name}_s": step["sync_phase_times_s"][name] for name in SYNC_PHASES},
    }


def _columns() -> list[str]:
    return [
        *("transport", "transport_key", "run_id", "status", "step", "weight_version", "wall_s"),
        *("sync_time_s", "pause_s", "resume_s", "reward_mean", "logprob_gap", "kl_k3", "sync_share"),
        *(f"phase_{name}_s" for name in PHASES),
        *(f"sync_{name}_s" for name in SYNC_PHASES),
    ]


def _means(table: pd.DataFrame, columns: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    means = warm(table).groupby("transport", sort=False)[list(columns)].mean()
    return means.set_axis(list(names), axis="columns")


def _summary_row(record: Record) -> dict[str, object]:
    rows = warm(steps([record]))
    step_s, sync_s = rows["wall_s"].mean(), rows["sync_time_s"].mean()
    payload_bytes = record["config"].get("payload_bytes")
    return {
        "transport": transport_label(record["config"]),
        "run": record["run_id"],
        "status": "ok" if record["error"] is None else f"failed: {inline_code(record['error'])}",
        "steps": len(record["steps"]),
        "step_s": step_s,
        "sync_s": sync_s,
        "sync_share": rows["phase_sync_s"].sum() / rows["wall_s"].sum() if len(rows) else float("nan"),
        "payload_MB": payload_bytes / 1e6 if payload_bytes else float("nan"),
        "sync_GBps": payload_bytes / sync_s / 1e9 if payload_bytes and sync_s else float("nan"),
        "max_logprob_gap": rows["logprob_gap"].astype(float).max(),
    }
