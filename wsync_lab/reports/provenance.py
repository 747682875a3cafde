"""Provenance as a small Markdown table."""

from collections.abc import Mapping, Sequence
from typing import Any

from wsync_lab.records import Record
from wsync_lab.tables.markdown import markdown_table

_SOFTWARE = ("python", "torch", "vllm", "ray", "nccl")


def provenance_of(records: Sequence[Record]) -> str:
    """Markdown: where ``records`` come from; differing values stand side by side."""
    rows = [_rows(record["provenance"]) for record in records]
    runs = ", ".join(dict.fromkeys(record["run_id"] for record in records))
    merged = {name: " / ".join(dict.fromkeys(row[name] for row in rows)) for name in rows[0]}
    return _table({"runs": runs, **merged})


def provenance_now(provenance: Mapping[str, Any]) -> str:
    """Markdown: one provenance, as ``wsync_lab.provenance.collect`` gives it; nothing is placed yet."""
    rows = _rows(provenance)
    del rows["placement"]
    return _table(rows)


def _rows(provenance: Mapping[str, Any]) -> dict[str, str]:
    known = [f"{name} {provenance[name]}" for name in _SOFTWARE if provenance.get(name)]
    return {
        "date": str(provenance.get("date")),
        "code": _code(provenance),
        "machine": _machine(provenance),
        "software": ", ".join(known),
        "container": _container(provenance),
        "placement": "emulated" if provenance.get("emulated_placement") else "a GPU for every slot",
    }


def _code(provenance: Mapping[str, Any]) -> str:
    commit = provenance.get("commit")
    if commit is None:
        return "not in a git checkout"
    return f"commit {commit[:12]}{' with local changes' if provenance.get('dirty') else ''}"


def _machine(provenance: Mapping[str, Any]) -> str:
    gpu = provenance.get("gpu")
    driver = f"{gpu}, driver {provenance.get('driver')}, CUDA {provenance.get('cuda')}" if gpu else "no GPU"
    return f"{driver}; {provenance.get('cpu')}; kernel {provenance.get('kernel')}"


def _container(provenance: Mapping[str, Any]) -> str:
    expandable = {True: "on", False: "off", None: "no CUDA allocator"}[provenance.get("expandable_segments")]
    return (
        f"seccomp mode {provenance.get('seccomp_mode')}, pidfd_getfd {provenance.get('pidfd_getfd')}, "
        f"expandable segments: {expandable}"
    )


def _table(rows: Mapping[str, str]) -> str:
    return markdown_table({"provenance": list(rows), "value": list(rows.values())})
