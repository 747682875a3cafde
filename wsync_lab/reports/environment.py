"""What the doctor's findings say about this machine."""

from collections.abc import Mapping, Sequence
from typing import Any

from wsync_lab.doctor import Finding
from wsync_lab.reports.verdict import Verdict
from wsync_lab.tables.labels import transport_label
from wsync_lab.tables.markdown import markdown_table


def transport_table(findings: Sequence[Finding]) -> str:
    """Markdown: one row a transport, with what carried the bytes or why none arrived."""
    return markdown_table(
        {
            "transport": [finding.transport for finding in findings],
            "works here": ["yes" if finding.works else "no" for finding in findings],
            "carried by": [finding.carried_by or "–" for finding in findings],
            "records call it": [_label(finding) if finding.works else "–" for finding in findings],
            "why not": [finding.reason or "–" for finding in findings],
        }
    )


def environment_verdict(findings: Sequence[Finding], provenance: Mapping[str, Any]) -> Verdict:
    """Which transports carried bytes here, and what the container says about torch's CUDA IPC."""
    works = [_label(finding) for finding in findings if finding.works]
    fails = [finding.transport for finding in findings if not finding.works]
    headline = f"{len(works)} of {len(findings)} transports carry bytes here: {', '.join(works) or 'none'}"
    return Verdict(f"{headline}; not {', '.join(fails)}" if fails else headline, True, _details(provenance))


def _details(provenance: Mapping[str, Any]) -> list[str]:
    answer = provenance["pidfd_getfd"]
    refused = "works" if answer == "ok" else f"is refused ({answer})"
    torch_ipc = "is not ruled out by that" if answer == "ok" else "cannot work"
    gpu = provenance["gpu"] or "no GPU, so every transport runs over host memory"
    return [
        f"This machine has {gpu}.",
        f"`pidfd_getfd` {refused} here, so torch's CUDA IPC of expandable segments {torch_ipc}.",
    ]


def _label(finding: Finding) -> str:
    return transport_label({"transport": finding.transport, "slot_memory": finding.carried_by})
