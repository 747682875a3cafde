"""Where the two ends of a colocated pair meet: a socket in a private directory."""

import contextlib
import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from wsync_lab.channel.link import Link
from wsync_lab.errors import DeadlineExceeded, ProtocolError

_PREFIX, _SOCKET = "wsync-pair-", "pair"
_YOUNG_S = 1.0
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


class Listener:
    """Trainer end: a listening socket in a directory that only this user may enter.

    Use as a context manager; the directory is gone afterwards, connected links stay. A
    directory whose owner was killed is removed by the next listener: its lock is free.
    """

    def __init__(self) -> None:
        _sweep_abandoned()
        # mkdtemp gives mode 0700 and a name nobody can guess.
        self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _try_lock(self._directory)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _at_path(self._socket.bind, self._directory / _SOCKET)
            self._socket.listen(1)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return str(self._directory / _SOCKET)

    def accept(self, *, deadline_s: float) -> Link:
        """The first peer that connects, if it runs as the same user."""
        self._socket.settimeout(deadline_s)
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            raise DeadlineExceeded(f"no inference worker connected within {deadline_s:g} s") from None
        return _authenticated(connection)

    def close(self) -> None:
        self._socket.close()
        _remove(self._directory)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(address: str, *, deadline_s: float) -> Link:
    """Engine end: connect to a trainer's ``Listener``.

    Raises:
        ProtocolError: nothing listens there, or the listener runs as another user.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(deadline_s)
    try:
        _at_path(connection.connect, Path(address))
    except OSError as error:
        connection.close()
        raise ProtocolError(f"no trainer listens at {address} ({error.strerror})") from None
    return _authenticated(connection)


def _sweep_abandoned() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _try_lock(directory)
        if lock is None:
            continue
        # Its owner locks it microseconds after making it: leave young ones alone.
        if time.time() - os.fstat(lock).st_mtime > _YOUNG_S:
            _remove(directory)
        os.close(lock)


def _remove(directory: Path) -> None:
    """A listener's directory; one with anything else in it is somebody else's and stays."""
    with contextlib.suppress(OSError):
        if {entry.name for entry in directory.iterdir()} <= {_SOCKET}:
            (directory / _SOCKET).unlink(missing_ok=True)
            directory.rmdir()


def _try_lock(directory: Path) -> int | None:
    """A descriptor that locks ``directory`` while it is open; None if another process has it."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _at_path(call: Callable[[str], Any], path: Path) -> None:
    """``call`` with a short name for ``path``, whose parent may be nested at any depth."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        call(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def _authenticated(connection: socket.socket) -> Link:
    link = Link(connection)
    if link.peer_uid == os.geteuid():
        return link
    link.close()
    if link.peer_uid == int(_OVERFLOW_UID.read_text()):
        raise ProtocolError(
            f"the peer appears as the overflow user {link.peer_uid}: it runs in another user "
            "namespace; run trainer and engine in the same one"
        )
    raise ProtocolError(f"the peer runs as user {link.peer_uid}, this process as {os.geteuid()}")
