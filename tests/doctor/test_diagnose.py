"""What is said of machines that are given as data; the texts are files, to be read."""

import json
from pathlib import Path

import pytest

from tests.doctor.machines import MACHINES, affected_container, h200
from wsync_lab.doctor.diagnose import diagnose
from wsync_lab.doctor.findings import Finding
from wsync_lab.doctor.machine import Machine
from wsync_lab.doctor.observe import Observation
from wsync_lab.doctor.text import as_data, as_text

GOLDEN = Path(__file__).parent / "golden"


def finding(machine: Machine, subject: str) -> Finding:
    (found,) = [each for each in diagnose(machine).findings if each.subject == subject]
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_the_diagnosis_reads_as_the_file_says(name: str) -> None:
    assert as_text(diagnose(MACHINES[name])) + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_every_machine_gets_another_diagnosis() -> None:
    assert len({as_text(diagnose(machine)) for machine in MACHINES.values()}) == len(MACHINES)
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(MACHINES)


@pytest.mark.parametrize(
    ("name", "transport"),
    [
        ("laptop", "pinned"),
        ("h200", "cuda_vmm"),
        ("affected-container", "cuda_vmm"),
        ("no-legacy-ipc", "pinned"),
        ("nothing-works", None),
    ],
)
def test_the_fastest_that_works_is_chosen_and_those_before_it_are_explained(
    name: str, transport: str | None
) -> None:
    choice = diagnose(MACHINES[name]).choice
    assert choice.transport == transport
    if name == "no-legacy-ipc":
        assert choice.reasons[:2] == [
            "not cuda_vmm: WsyncError: crashed",
            "not cuda_ipc: cuIpcGetMemHandle: unknown error",
        ]


def test_the_reports_container_is_told_what_to_set() -> None:
    """One command: cause and remedy."""
    assert finding(affected_container(), "pidfd_getfd").happened == "EPERM"
    allocator = finding(affected_container(), "expandable segments")
    assert allocator.status == "fails"
    assert "PYTORCH_ALLOC_CONF=expandable_segments:False" in allocator.remedy
    assert finding(h200(), "expandable segments").status == "ok"


def test_a_probe_that_hung_or_crashed_is_a_finding() -> None:
    for seen in (Observation(error="no answer in 90 s"), Observation(error="crashed by SIGSEGV")):
        for question in (
            "seccomp",
            "pidfd_getfd",
            "yama",
            "shared_memory",
            "locked_memory",
            "versions",
            "gpus",
        ):
            text = as_text(diagnose(h200() | {question: seen}))
            assert seen.error in text, question


def test_the_diagnosis_is_plain_data() -> None:
    for machine in MACHINES.values():
        assert json.loads(json.dumps(as_data(diagnose(machine))))["choice"].keys() == {"transport", "reasons"}
