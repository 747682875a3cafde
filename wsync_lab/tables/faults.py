"""Fault records as a DataFrame: what went wrong with which message, and what was served then."""

from collections.abc import Sequence

import pandas as pd

from wsync_lab.records import Record

OLD, NEW, RESTARTED, MIXTURE = "old", "new", "restarted", "mixture"
_ORDER = ("AdapterBegin", "AdapterBucket", "Seal", "Commit", "Started", "SlotFree", "Prepared", "Done")


def faults(records: Sequence[Record]) -> pd.DataFrame:
    """One row a fault: ``transport, engine`` and the fields of ``records.FaultOutcome``."""
    rows = [
        {"transport": record["config"]["transport"], "engine": record["config"]["engine"], **fault}
        for record in records
        if record["kind"] == "fault"
        for fault in record["faults"]
    ]
    return pd.DataFrame(rows)


def served(records: Sequence[Record]) -> pd.DataFrame:
    """What was served after each fault (index) at each message (columns), all transports together.

    A cell names each outcome once, ``old, new`` where transports or buckets differ; it is empty
    where a message cannot meet the fault.
    """
    table = faults(records)
    if table.empty:
        return table
    cells = table.groupby(["fault", "message"], sort=False)["served"].agg(_words).unstack(fill_value="")
    columns = [name for name in _ORDER if name in cells.columns]
    return cells[columns].reindex(list(dict.fromkeys(table["fault"])))


def _words(outcomes: "pd.Series[str]") -> str:
    return ", ".join(sorted(set(outcomes), key=(OLD, NEW, RESTARTED, MIXTURE).index))
