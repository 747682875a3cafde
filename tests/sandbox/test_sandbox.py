"""Each profile is felt by the command, by what it starts, and by root and others alike."""

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tooling.imports import ROOT
from wsync_lab.errors import ConfigError
from wsync_lab.sandbox import outside, seccomp
from wsync_lab.sandbox.run import PROFILES, become

NOBODY = 65534
GETFD = "from wsync_lab.provenance import try_pidfd_getfd; print(try_pidfd_getfd())"
# A grandchild, started without any help of ours.
DEEP = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {GETFD!r}], check=True)"
SHM = "import os; s = os.statvfs('/dev/shm'); print(s.f_frsize * s.f_blocks)"
LOCK = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
size = int(sys.argv[1])
memory = mmap.mmap(-1, size)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
print(libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)), ctypes.get_errno())
"""


def python_for(user: int) -> str:
    """An interpreter that ``user`` may run: a virtual environment can lie in a private folder."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    ask = ["-c", "import wsync_lab.cli, sys; assert sys.version_info >= (3, 11)"]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            asked = subprocess.run([python, *ask], env=environment, user=user, cwd="/", check=False)
            if asked.returncode == 0:
                return python
    pytest.skip("another user can read neither this checkout nor an interpreter")


users = pytest.mark.parametrize("user", [None, NOBODY], ids=["this user", "nobody"])


def sandbox(
    profiles: Sequence[str], code: str, *arguments: str, user: int | None = None
) -> subprocess.CompletedProcess[str]:
    """``wsync sandbox`` with Python's ``code`` as the command."""
    python = sys.executable if user is None else python_for(user)
    options = [part for profile in profiles for part in ("--profile", profile)]
    command = [python, "-m", "wsync_lab.cli", "sandbox", *options, "--"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        [*command, python, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        user=user,
        cwd="/",
        timeout=60,
    )
    if process.returncode == 2 and "refuses a mount namespace" in process.stderr:
        pytest.skip(f"tiny-shm cannot be imposed here: {process.stderr.strip()}")
    return process


@users
def test_managed_refuses_pidfd_getfd_to_a_grandchild(user: int | None) -> None:
    assert sandbox(["managed"], DEEP, user=user).stdout.split() == ["EPERM"]


@users
def test_nothing_else_is_refused(user: int | None) -> None:
    """A descriptor that is sent by its owner arrives."""
    code = (
        "import array, os, socket\n"
        "here, there = socket.socketpair()\n"
        "fd = os.memfd_create('slot'); os.write(fd, b'bytes')\n"
        "socket.send_fds(here, [b'x'], [fd])\n"
        "_, fds, _, _ = socket.recv_fds(there, 1, 1)\n"
        "print(os.pread(fds[0], 5, 0).decode(), os.pidfd_open(os.getpid()) > 0)"
    )
    assert sandbox(["managed"], code, user=user).stdout.split() == ["bytes", "True"]


@users
def test_tiny_shm_is_64_mb_inside_and_as_it_was_outside(user: int | None) -> None:
    before = os.statvfs("/dev/shm").f_blocks
    process = sandbox(["tiny-shm"], f"{SHM}; print(os.getuid())", user=user)
    assert process.stdout.split() == [str(64 << 20), str(os.getuid() if user is None else user)], (
        process.stderr
    )
    assert os.statvfs("/dev/shm").f_blocks == before


@users
def test_low_memlock_holds_for_root_too(user: int | None) -> None:
    assert sandbox(["low-memlock"], LOCK, str(4 << 20), user=user).stdout.split() == ["0", "0"]
    refused = sandbox(["low-memlock"], LOCK, str(16 << 20), user=user).stdout.split()
    assert refused in (["-1", str(errno.ENOMEM)], ["-1", str(errno.EPERM)], ["-1", str(errno.EAGAIN)])


@users
def test_all_profiles_together(user: int | None) -> None:
    assert sandbox(list(PROFILES), f"{GETFD}; {SHM}", user=user).stdout.split() == ["EPERM", str(64 << 20)]


def test_the_commands_exit_status_is_passed_on() -> None:
    assert sandbox(["managed"], "raise SystemExit(7)").returncode == 7


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--profile", "vacuum", "--", "true"], "unknown profile vacuum: choose among tiny-shm, low-memlock"),
        (["--profile", "managed"], "no command"),
        (["--", "no-such-command"], "no-such-command cannot be run: No such file"),
    ],
)
def test_what_cannot_be_run_is_one_line(options: list[str], text: str) -> None:
    command = [sys.executable, "-m", "wsync_lab.cli", "sandbox", *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert process.returncode == 2
    assert text in process.stderr
    assert len(process.stderr.splitlines()) == 1


def test_what_would_work_from_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RAY_ADDRESS is 10"):
        outside.check({"RAY_ADDRESS": "10.0.0.1:6379"})
    (tmp_path / "control").touch()
    with pytest.raises(ConfigError, match="a CUDA MPS daemon listens"):
        outside.check({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    outside.check({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "none")})


def test_an_unknown_machine_is_refused_before_anything_is_imposed() -> None:
    with pytest.raises(ConfigError, match="no seccomp filter for riscv64"):
        seccomp.program([1], "riscv64")
    with pytest.raises(ConfigError, match="unknown profile"):
        become(["vacuum"], ["true"])


def test_the_filter_lets_other_calls_pass_and_refuses_each_that_is_named() -> None:
    """Its instructions, run by hand."""
    code = seccomp.program([438, 312], "x86_64")
    verdicts = {number: run_filter(code, number, 0xC000003E) for number in (0, 312, 438, 439)}
    assert verdicts == {0: 0x7FFF0000, 312: 0x00050001, 438: 0x00050001, 439: 0x7FFF0000}
    assert run_filter(code, 438, 0x40000003) == 0x7FFF0000


def run_filter(code: bytes, number: int, arch: int) -> int:
    instructions = [
        (
            int.from_bytes(code[at : at + 2], sys.byteorder),
            code[at + 2],
            code[at + 3],
            int.from_bytes(code[at + 4 : at + 8], sys.byteorder),
        )
        for at in range(0, len(code), 8)
    ]
    at, loaded = 0, 0
    while True:
        kind, if_true, if_false, value = instructions[at]
        at += 1
        if kind == 0x06:
            return value
        if kind == 0x20:
            loaded = {0: number, 4: arch}[value]
        else:
            at += if_true if loaded == value else if_false
