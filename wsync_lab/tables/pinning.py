"""Pinning records as DataFrames: shared memory by bucket, and what arrived."""

from collections.abc import Sequence

import pandas as pd

from wsync_lab.records import Record
from wsync_lab.tables.markdown import markdown_table, significant


def samples(records: Sequence[Record]) -> pd.DataFrame:
    """One row a bucket: ``strategy, hold, bucket, trainer_MB, worker_MB`` (10^6 bytes)."""
    rows = [
        {
            "strategy": record["config"]["strategy"],
            "hold": held(record),
            "bucket": bucket,
            "trainer_MB": trainer / 1e6,
            "worker_MB": worker / 1e6,
        }
        for record in records
        if record["kind"] == "pinning"
        for bucket, (trainer, worker) in enumerate(
            zip(record["trainer_bytes"], record["worker_bytes"], strict=True), start=1
        )
    ]
    return pd.DataFrame(rows)


def held(record: Record) -> str:
    """How many buckets the engine kept, in words."""
    hold = record["config"]["hold"]
    return "all" if hold < 0 else str(hold)


def summary(records: Sequence[Record]) -> str:
    """Markdown: one row a strategy and number of held buckets."""
    shown = [record for record in records if record["kind"] == "pinning"]
    return markdown_table(
        {
            "strategy": [record["config"]["strategy"] for record in shown],
            "held": [held(record) for record in shown],
            "rises by (MB a bucket)": [significant(record["growth_bytes"] / 1e6) for record in shown],
            "at the end (MB)": [significant(record["worker_bytes"][-1] / 1e6) for record in shown],
            "ms a bucket": [significant(1e3 * _median(record["bucket_times_s"])) for record in shown],
            "stale tensors": [record["num_stale"] for record in shown],
            "NaNs": [record["num_nans"] for record in shown],
        }
    )


def _median(values: Sequence[float]) -> float:
    return float(pd.Series(values).median())
