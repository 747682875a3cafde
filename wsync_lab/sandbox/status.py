"""What the kernel says of this process in ``/proc/self/status``: proc_pid_status(5)."""

from pathlib import Path


def field(name: str) -> str | None:
    """The value of ``name``, None where the kernel does not show it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return None


def capabilities(name: str) -> int:
    """A set of capabilities, ``CapEff`` say, as a mask."""
    return int(field(name) or "0", 16)
