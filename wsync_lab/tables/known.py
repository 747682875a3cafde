"""The README's table: what is known about weight sync so far, published and measured here."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wsync_lab.records import Record, read
from wsync_lab.tables import syncs
from wsync_lab.tables.markdown import markdown_table, percent, significant
from wsync_lab.tables.published import Report
from wsync_lab.tables.steps import summary

Row = dict[str, str]


def known_table(raw: Path, published: Report) -> str:
    """Markdown: one row a published figure, then one a record of the folder ``raw``, those taken
    on a GPU first, sweeps left out."""
    files = sorted(set(raw.glob("*.jsonl")) - set(raw.glob("*sweep*")))
    measured = [
        (record["provenance"]["gpu"] is None, file, record) for file in files for record in read(file)
    ]
    shown = sorted(measured, key=lambda each: each[:2])
    rows = [_published_row(published), *_rows(shown)]
    return markdown_table({name: [row[name] for row in rows] for name in rows[0]})


def _published_row(report: Report) -> Row:
    return {
        "transport": "CPU staging",
        "where": report.setup.removesuffix(", CPU staging"),
        "slots": "–",
        "payload (MB)": significant(report.value("payload_bytes") / 1e6),
        "sync (s)": significant(report.value("weight_sync_s")),
        "GB/s": significant(report.value("sync_GBps")),
        "share of the step": f"{report.value('weight_sync_share'):.0%}",
        "source": f"[{report.key}]({report.address})",
    }


def _rows(measured: Iterable[tuple[bool, Path, Record]]) -> Iterator[Row]:
    for _, file, record in measured:
        if record["kind"] in _ROWS and record["status"] == "ok":
            yield _ROWS[record["kind"]](record, file)


def _step_row(record: Record, file: Path) -> Row:
    row, config = summary([record]).iloc[0], record["config"]
    return {
        "transport": row["transport"],
        "where": f"{_model(config)}, {config['dtype']}, {_machine(record['provenance'])}",
        "slots": _slots(config),
        "payload (MB)": significant(row["payload_MB"]),
        "sync (s)": significant(row["sync_s"]),
        "GB/s": significant(row["sync_GBps"]),
        "share of the step": percent(row["sync_share"]),
        "source": f"[{file.stem}](data/raw/{file.name})",
    }


def _sync_row(record: Record, file: Path) -> Row:
    row, config = syncs.summary([record]).iloc[0], record["config"]
    return {
        "transport": row["transport"],
        "where": f"{row['model']} into {row['engine']}, {_machine(record['provenance'])}",
        "slots": _slots(config),
        "payload (MB)": significant(row["payload_bytes"] / 1e6),
        "sync (s)": significant(row["sync_s"]),
        "GB/s": significant(row["GBps"]),
        "share of the step": "–",
        "source": f"[{file.stem}](data/raw/{file.name})",
    }


def _model(config: Mapping[str, Any]) -> str:
    rank = config.get("lora_rank")
    return f"LoRA rank {rank} of {config['model']}" if rank else str(config["model"])


def _slots(config: Mapping[str, int]) -> str:
    size = config["slot_bytes"]
    text = f"{size / (1 << 20):.0f} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.0f} KiB"
    return f"{config['num_slots']} x {text}"


def _machine(provenance: Mapping[str, object]) -> str:
    return str(provenance["gpu"] or f"no GPU, {provenance['cpu']}")


_ROWS: dict[str, Callable[[Record, Path], Row]] = {
    "step": _step_row,
    "sync": _sync_row,
    "lora": _sync_row,
}
