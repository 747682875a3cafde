"""Questions are asked in processes that may hang, crash or be refused; here they are."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.tooling.imports import ROOT
from wsync_lab.doctor.ask import answer
from wsync_lab.doctor.choose import choose_transport
from wsync_lab.doctor.observe import Observation, observe
from wsync_lab.doctor.questions import QUESTIONS


def test_a_question_that_hangs_is_ended_with_its_children() -> None:
    start = time.monotonic()
    seen = observe("transport", "pinned", deadline_s=0.3)
    assert seen.error == "no answer in 0.3 s"
    assert time.monotonic() - start < 20


def test_a_question_that_crashes_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr("sys.executable", _interpreter(tmp_path, program))
    assert observe("seccomp") == Observation(error="crashed by SIGSEGV")


def test_a_question_that_says_nothing_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", _interpreter(tmp_path, "raise SystemExit(3)"))
    assert observe("seccomp").error == "ended with exit status 3 and no answer"


def test_an_error_is_an_answer() -> None:
    assert answer("transport", ["pigeon"])["error"].startswith("ConfigError: unknown transport 'pigeon'")
    seen = observe("transport", "cuda_ipc")
    assert seen.error.startswith("TransportUnavailable: ")


@pytest.mark.parametrize(
    "question", ["seccomp", "yama", "fd_passing", "shared_memory", "locked_memory", "versions"]
)
def test_what_every_machine_can_answer(question: str) -> None:
    assert observe(question).answered
    assert question in QUESTIONS


def test_each_profile_gives_another_diagnosis() -> None:
    """What the sandbox imposes, the doctor finds."""
    if not observe("namespaces").answered:
        pytest.skip("tiny-shm cannot be imposed here: no namespaces for this user")
    statuses = {profile: _statuses(profile) for profile in ("managed", "tiny-shm", "low-memlock")}
    assert statuses["managed"]["pidfd_getfd"] == "fails"
    assert statuses["managed"]["seccomp"] == "limited"
    assert statuses["tiny-shm"]["/dev/shm"] == "limited"
    assert statuses["low-memlock"]["locked memory"] == "limited"
    assert statuses["tiny-shm"]["pidfd_getfd"] == statuses["low-memlock"]["pidfd_getfd"] == "ok"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has faster ones")
def test_auto_is_what_works_here() -> None:
    choice = choose_transport()
    assert choice.transport == "pinned"
    assert choice.reasons == ["pinned: shared host memory"]


def _statuses(profile: str) -> dict[str, str]:
    command = [sys.executable, "-m", "wsync_lab.cli"]
    process = subprocess.run(
        [
            *command,
            "sandbox",
            "--profile",
            profile,
            "--",
            *command,
            "doctor",
            "--json",
            "--transports",
            "pinned",
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=150,
    )
    diagnosis = json.loads(process.stdout)
    assert [each["works"] for each in diagnosis["transports"]] == [True]
    return {each["subject"]: each["status"] for each in diagnosis["findings"]}


def _interpreter(folder: Path, program: str) -> str:
    """One that runs ``program`` whatever it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program}'\n")
    path.chmod(0o755)
    return str(path)
