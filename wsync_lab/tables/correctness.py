"""Correctness records as a DataFrame: transports by layouts."""

from collections.abc import Sequence

import pandas as pd

from wsync_lab.records import Record
from wsync_lab.tables.labels import transport_label

EQUAL, DIFFERENT, UNAVAILABLE, FAILED = "equal", "different", "not available", "failed"


def outcomes(records: Sequence[Record]) -> pd.DataFrame:
    """``equal``, ``different``, ``not available`` or ``failed``: index transport, columns layouts."""
    shown = [record for record in records if "layout" in record["config"]]
    rows: dict[str, dict[str, str]] = {}
    for record in shown:
        rows.setdefault(_label(record), {})[record["config"]["layout"]] = outcome(record)
    return pd.DataFrame.from_dict(rows, orient="index")


def outcome(record: Record) -> str:
    """One of the four words."""
    if record["status"] == "failed":
        unavailable = record["error"].startswith("TransportUnavailable: ")
        return UNAVAILABLE if unavailable else FAILED
    return DIFFERENT if record["num_mismatched"] else EQUAL


def reasons(records: Sequence[Record]) -> list[str]:
    """Why transports are not available, or what failed; each text once."""
    found = (f"{record['config']['transport']}: {record['error']}" for record in records if record["error"])
    return list(dict.fromkeys(found))


def _label(record: Record) -> str:
    return transport_label(record["config"]) if record["status"] == "ok" else record["config"]["transport"]
