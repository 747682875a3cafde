"""What the doctor's diagnosis says about this machine."""

from collections.abc import Sequence

from wsync_lab.doctor.findings import Diagnosis, Finding, TransportFinding
from wsync_lab.reports.verdict import Verdict
from wsync_lab.tables.labels import transport_label
from wsync_lab.tables.markdown import inline_code, markdown_table


def transport_table(findings: Sequence[TransportFinding]) -> str:
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


def finding_table(findings: Sequence[Finding]) -> str:
    """Markdown: what was tried, what happened, what it means and what to do."""
    return markdown_table(
        {
            "subject": [finding.subject for finding in findings],
            "status": [finding.status for finding in findings],
            "tried": [finding.tried for finding in findings],
            "happened": [inline_code(finding.happened) for finding in findings],
            "means": [finding.means for finding in findings],
            "remedy": [finding.remedy or "–" for finding in findings],
        }
    )


def environment_verdict(diagnosis: Diagnosis) -> Verdict:
    """Which transport to take here, which others carried bytes, and what limits the machine."""
    works = [_label(finding) for finding in diagnosis.transports if finding.works]
    choice, total = diagnosis.choice, len(diagnosis.transports)
    limits = [
        f"{finding.subject}: {inline_code(finding.happened)}: {finding.means}"
        for finding in diagnosis.findings
        if finding.status in {"limited", "fails"}
    ]
    carried = f"{len(works)} of {total} transports carry bytes here: {', '.join(works) or 'none'}"
    if choice.transport is None:
        return Verdict("NO TRANSPORT WORKS HERE", False, [*choice.reasons, *limits])
    return Verdict(f"Take {choice.transport}; {carried}", True, [*choice.reasons, *limits])


def _label(finding: TransportFinding) -> str:
    return transport_label({"transport": finding.transport, "slot_memory": finding.carried_by})
