"""System calls that Python 3.11 has no function for; each raises ``OSError`` with its errno."""

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int) -> None:
    """prctl(2)."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    _check(_LIBC.prctl(option, *(ctypes.c_ulong(each) for each in padded)))


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_LIBC.unshare(flags))


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    """mount(2)."""
    strings = (each.encode() for each in (source, target, kind))
    _check(_LIBC.mount(*strings, ctypes.c_ulong(flags), data.encode()))


def capset(header: ctypes.Structure, data: ctypes.Array[ctypes.c_uint32]) -> None:
    """capset(2)."""
    _check(_LIBC.capset(ctypes.byref(header), data))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
