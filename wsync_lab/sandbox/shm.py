"""A /dev/shm of 64 MB, the default of container runtimes, in namespaces of its own."""

import os
from pathlib import Path

from wsync_lab.errors import ConfigError
from wsync_lab.sandbox.libc import mount, unshare

SIZE_BYTES = 64 << 20
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC_PRIVATE = 0x4000 | 0x40000


def shrink() -> None:
    """This process and its children see a /dev/shm of ``SIZE_BYTES``; nobody else does.

    Raises:
        ConfigError: the host lets this user make no namespaces.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        unshare(_CLONE_NEWUSER | _CLONE_NEWNS)
        _keep_identity(uid, gid)
        mount("none", "/", "none", _MS_REC_PRIVATE, "")  # nothing done here reaches the host
        mount("wsync", "/dev/shm", "tmpfs", 0, f"size={SIZE_BYTES}")
    except OSError as error:
        raise ConfigError(
            f"this host refuses a mount namespace ({error}): allow unprivileged user namespaces, "
            "or run on another host"
        ) from None


def _keep_identity(uid: int, gid: int) -> None:
    """The user is the same inside, user_namespaces(7): peers on sockets see who they saw before."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
