"""Ask one question in a throw-away process: an answer, an error, a crash or silence, in time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 90.0


@dataclass(frozen=True)
class Observation:
    """What came of a question.

    Attributes:
        value: the answer, plain data; None where there is none.
        error: what happened instead: the errno's text, ``crashed by SIGSEGV``, ``no answer in
            90 s``. Empty if there is an answer.
    """

    value: Any = None
    error: str = ""

    @property
    def answered(self) -> bool:
        return not self.error


def observe(question: str, *arguments: str, deadline_s: float = DEADLINE_S) -> Observation:
    """Ask ``question`` of ``doctor.questions`` in a new process; whatever it starts ends with it."""
    command = [sys.executable, "-m", "wsync_lab.doctor.ask", question, *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        return Observation(error=f"no answer in {deadline_s:g} s")
    finally:
        _end(process)
    return _read(printed, process.returncode)


def _read(printed: str, status: int) -> Observation:
    if status < 0:
        return Observation(error=f"crashed by {signal.Signals(-status).name}")
    try:
        answer = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        return Observation(error=f"ended with exit status {status} and no answer")
    return Observation(answer["value"], answer["error"])


def _end(process: "subprocess.Popen[str]") -> None:
    """The process and its children, which share its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
