"""A low limit on locked memory, which also holds for root."""

import ctypes
import resource

from wsync_lab.sandbox.libc import capset, prctl
from wsync_lab.sandbox.status import capabilities

LIMIT_BYTES = 8 << 20
CAP_IPC_LOCK = 14  # linux/capability.h
_PR_CAPBSET_DROP, _CAPABILITY_VERSION_3 = 24, 0x20080522
_CAP_SETPCAP = 8


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def limit() -> None:
    """At most ``LIMIT_BYTES`` may be locked by each process from now on (getrlimit(2)).

    The kernel lets a process with CAP_IPC_LOCK pass the limit, so that goes too: from the
    process, and from what a program started by root could gain again (capabilities(7)).
    """
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT_BYTES, LIMIT_BYTES))
    if _has(capabilities("CapEff"), _CAP_SETPCAP):
        prctl(_PR_CAPBSET_DROP, CAP_IPC_LOCK)
    kept = [capabilities(name) & ~(1 << CAP_IPC_LOCK) for name in ("CapEff", "CapPrm", "CapInh")]
    low, high = [each & 0xFFFFFFFF for each in kept], [each >> 32 for each in kept]
    capset(_Header(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)(*low, *high))


def _has(mask: int, capability: int) -> bool:
    return bool(mask >> capability & 1)
