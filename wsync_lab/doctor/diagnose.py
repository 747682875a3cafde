"""From answers to findings: a pure function, so that any machine can be put to it as data."""

from collections.abc import Callable

from wsync_lab.doctor.choose import choose
from wsync_lab.doctor.findings import Diagnosis, Finding, TransportFinding
from wsync_lab.doctor.machine import Machine
from wsync_lab.doctor.system import system_findings
from wsync_lab.doctor.torch_ipc import torch_findings

_PREFIX = "transport "


def diagnose(machine: Machine) -> Diagnosis:
    """Everything that the answers say."""
    makers: tuple[Callable[[Machine], list[Finding]], ...] = (system_findings, torch_findings)
    findings = [finding for maker in makers for finding in maker(machine)]
    transports = transport_findings(machine)
    return Diagnosis(findings, transports, choose(transports, machine))


def transport_findings(machine: Machine) -> list[TransportFinding]:
    """In the order in which they were asked about."""
    found = []
    for key, seen in machine.items():
        if key.startswith(_PREFIX):
            name = key.removeprefix(_PREFIX)
            carrier = (seen.value["collective"] or seen.value["slot_memory"]) if seen.answered else ""
            reason = seen.error.removeprefix("TransportUnavailable: ")
            found.append(TransportFinding(name, seen.answered, carrier, reason))
    return found
