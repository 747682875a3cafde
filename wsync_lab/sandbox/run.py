"""Put on the restrictions of a profile, and become the command."""

import os
from collections.abc import Callable, Sequence

from wsync_lab.errors import ConfigError
from wsync_lab.sandbox import memlock, outside, seccomp, shm

# In the order in which several are imposed: a new namespace would give capabilities back.
PROFILES: dict[str, Callable[[], None]] = {
    "tiny-shm": shm.shrink,
    "low-memlock": memlock.limit,
    "managed": lambda: seccomp.refuse([seccomp.PIDFD_GETFD]),
}
MEANINGS = {
    "managed": "a seccomp filter refuses pidfd_getfd, as in the report",
    "tiny-shm": "/dev/shm has 64 MB",
    "low-memlock": "8 MB may be locked, also by root",
}


def become(profiles: Sequence[str], command: Sequence[str]) -> None:
    """Replace this process by ``command`` under ``profiles``; its children inherit them.

    Raises:
        ConfigError: a profile is unknown or cannot be imposed here, the command is not found, or
            something outside would work for it.
    """
    unknown = [profile for profile in profiles if profile not in PROFILES]
    if unknown or not profiles:
        raise ConfigError(f"unknown profile {', '.join(unknown)}: choose among {', '.join(PROFILES)}")
    if not command:
        raise ConfigError("no command: wsync sandbox --profile managed -- COMMAND ARGUMENTS")
    outside.check()
    for profile in sorted(set(profiles), key=list(PROFILES).index):
        PROFILES[profile]()
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from None
