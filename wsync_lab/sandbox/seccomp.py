"""A seccomp filter that refuses single system calls with EPERM, as a managed container's does.

Classic BPF over ``struct seccomp_data`` (seccomp(2)). Docker's default profile refuses
``pidfd_getfd`` to containers without CAP_SYS_PTRACE in the same way (moby/moby,
``profiles/seccomp/default.json``). Children inherit a filter, and nobody can lift it.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence

from wsync_lab.errors import ConfigError
from wsync_lab.sandbox.libc import prctl

PIDFD_GETFD = 438  # on every architecture
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4  # in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse(numbers: Sequence[int]) -> None:
    """From now on this process and its children get EPERM for these system calls.

    Raises:
        ConfigError: the machine's architecture is not known here, or the kernel has no seccomp.
    """
    code = program(numbers, platform.machine())
    filled = _Program(len(code) // 8, code)
    try:
        prctl(_PR_SET_NO_NEW_PRIVS, 1)  # what lets a process without privileges filter itself
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filled))
    except OSError as error:
        raise ConfigError(f"this kernel takes no seccomp filter ({error}): run on one that does") from None


def program(numbers: Sequence[int], machine: str) -> bytes:
    """The filter's instructions, 8 bytes each. Calls of another architecture are let through."""
    if machine not in _AUDIT_ARCH:
        raise ConfigError(f"no seccomp filter for {machine}: use one of {', '.join(_AUDIT_ARCH)}")
    checks = [
        _instruction(_JUMP_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)
    ]
    return b"".join(
        [
            _instruction(_LOAD_WORD, 0, 0, _ARCH_OFFSET),
            _instruction(_JUMP_EQUAL, 0, len(numbers) + 1, _AUDIT_ARCH[machine]),
            _instruction(_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
            *checks,
            _instruction(_RETURN, 0, 0, _ALLOW),
            _instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM),
        ]
    )


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    """``struct sock_filter``; jumps count the instructions that are passed over."""
    return struct.pack("HBBI", code, if_true, if_false, value)
