"""Benchmark records as DataFrames. Times in seconds, payloads in bytes, rates in GB/s (10^9)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from wsync_lab.records import SYNC_PHASES, Record
from wsync_lab.tables.labels import transport_label
from wsync_lab.tables.markdown import inline_code


def summary(records: Sequence[Record]) -> pd.DataFrame:
    """One row a ``sync`` or ``lora`` record, failed ones included; times are medians of its updates.

    ``vs_limit`` is the time over ``limit_s``; ``vs_cpu`` how many times as fast as ``cpu`` of
    the same run and payload, where that was measured.
    """
    rows = [_row(record) for record in records if record["kind"] in {"sync", "lora"}]
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    cpu = table[table["transport_key"] == "cpu"].groupby(["run_id", "payload_bytes"])["sync_s"].first()
    keys = pd.MultiIndex.from_frame(table[["run_id", "payload_bytes"]])
    return table.assign(vs_cpu=cpu.reindex(keys).to_numpy() / table["sync_s"].to_numpy())


def fixed_costs(records: Sequence[Record]) -> pd.DataFrame:
    """Least squares of ``sync time = update_s + tensor_s * tensors + payload / rate`` by transport.

    Needs records that vary both the number of tensors and the payload: a transport with fewer
    than four of them is left out. ``residual`` is the largest error of the fit over the time.
    """
    table = summary([record for record in records if record["status"] == "ok"])
    groups = table.groupby("transport", sort=False) if len(table) else ()
    return pd.DataFrame([_fit(str(name), rows) for name, rows in groups if len(rows) >= 4])


def _row(record: Record) -> dict[str, object]:
    config, times = record["config"], record["sync_times_s"]
    middle = float(np.median(times)) if times else float("nan")
    payload_bytes = config.get("payload_bytes", float("nan"))
    return {
        "transport": transport_label(config),
        "transport_key": config["transport"],
        "run_id": record["run_id"],
        "model": config["model"],
        "engine": config.get("engine", ""),
        "status": "ok" if record["error"] is None else f"failed: {inline_code(record['error'])}",
        "payload_bytes": payload_bytes,
        "num_tensors": config.get("num_tensors", float("nan")),
        "num_updates": len(times),
        "sync_s": middle,
        "spread": (max(times) - min(times)) / middle if times else float("nan"),
        "GBps": payload_bytes / middle / 1e9,
        "vs_limit": middle / record["limit_s"],
        **{f"{name}_s": _median(record["phase_times_s"][name]) for name in SYNC_PHASES},
    }


def _fit(transport: str, rows: pd.DataFrame) -> dict[str, object]:
    columns = [np.ones(len(rows)), rows["num_tensors"].to_numpy(float), rows["payload_bytes"].to_numpy(float)]
    times = rows["sync_s"].to_numpy(float)
    weighted = np.stack(columns, axis=1) / times[:, None]  # relative errors: small updates count as much
    solution, *_ = np.linalg.lstsq(weighted, np.ones(len(rows)), rcond=None)
    update_s, tensor_s, byte_s = map(float, solution)
    residual = float(np.abs(weighted @ solution - 1).max())
    rate = 1 / byte_s / 1e9 if byte_s > 0 else float("nan")
    return {
        "transport": transport,
        "update_s": update_s,
        "tensor_s": tensor_s,
        "GBps": rate,
        "residual": residual,
        "num_records": len(rows),
    }


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else float("nan")
