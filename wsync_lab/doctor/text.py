"""A diagnosis as text and as plain data."""

import dataclasses
import textwrap
from typing import Any

from wsync_lab.doctor.findings import Diagnosis, Finding, TransportFinding

_WIDTH = 100


def as_text(diagnosis: Diagnosis) -> str:
    """One block a finding, one line a transport, then the recommendation with its reasons."""
    blocks = [_finding(finding) for finding in diagnosis.findings]
    lines = [_transport(finding) for finding in diagnosis.transports]
    choice = diagnosis.choice
    head = f"take {choice.transport}" if choice.transport else "no transport works here"
    reasons = [f"  {reason}" for reason in choice.reasons]
    return "\n".join([*blocks, "", *lines, "", head, *reasons])


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    return dataclasses.asdict(diagnosis)


def _finding(finding: Finding) -> str:
    lines = [f"{finding.status:8} {finding.subject}: {finding.tried}: {finding.happened}"]
    lines += textwrap.wrap(finding.means, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)
    if finding.remedy:
        lines += textwrap.wrap(
            f"-> {finding.remedy}", _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 12
        )
    return "\n".join(lines)


def _transport(finding: TransportFinding) -> str:
    if finding.works:
        return f"{finding.transport:8} works, carried by {finding.carried_by}"
    return f"{finding.transport:8} does not: {finding.reason}"
