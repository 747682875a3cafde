"""What was found, in words: tried, happened, means, remedy."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "limited", "fails", "absent", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One fact about the machine.

    Attributes:
        tried: what was done to find out.
        happened: the answer, or the errno's text.
        means: what follows for weight sync.
        remedy: what to do; empty if nothing has to be done.
    """

    subject: str
    status: Status
    tried: str
    happened: str
    means: str
    remedy: str = ""


@dataclass(frozen=True)
class TransportFinding:
    """One transport: what carried the bytes, or why none arrived."""

    transport: str
    works: bool
    carried_by: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Choice:
    """The fastest transport that works here, and why it and not another; None if none does."""

    transport: str | None
    reasons: list[str]


@dataclass(frozen=True)
class Diagnosis:
    findings: list[Finding]
    transports: list[TransportFinding]
    choice: Choice
