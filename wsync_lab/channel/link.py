"""A framed unix-socket connection: messages and file descriptors, each wait with a deadline."""

import array
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from wsync_lab.channel.messages import MAX_MESSAGE_BYTES, Message, decode, encode
from wsync_lab.errors import DeadlineExceeded, PeerLost, ProtocolError

_HEADER = struct.Struct("!IB")  # bytes that follow, descriptors that travel with them
_UCRED = struct.Struct("3i")  # pid, uid, gid: SO_PEERCRED, unix(7)
_MAX_FDS = 64
_FD_BYTES = array.array("i").itemsize
_CHUNK_BYTES = 1 << 20


class Link:
    """One end of a connected pair. Not shared between threads.

    A dead peer is noticed at once, by end-of-file, not by a time-out.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.peer_pid, self.peer_uid, _ = peer_credentials(connection)

    def send(self, message: Message, fds: Sequence[int] = (), *, deadline_s: float) -> None:
        """Send ``message`` and, with it, duplicates of ``fds``.

        Raises:
            PeerLost: the peer closed its end or died.
            DeadlineExceeded: the peer did not read for ``deadline_s`` seconds.
        """
        self.send_body(encode(message), fds, deadline_s=deadline_s)

    def send_body(self, body: bytes, fds: Sequence[int] = (), *, deadline_s: float) -> None:
        """``send``, of a message that is encoded."""
        try:
            self._socket.settimeout(deadline_s)
            socket.send_fds(self._socket, [_HEADER.pack(len(body), len(fds))], list(fds))
            self._socket.sendall(body)
        except TimeoutError:
            raise self._late(f"sending {len(body)} bytes", deadline_s) from None
        except OSError as error:
            raise self._lost(error) from None

    def receive(self, *, deadline_s: float) -> tuple[Message, list[int]]:
        """The next message and the descriptors that came with it, owned by the caller.

        Raises:
            PeerLost, DeadlineExceeded: as in ``send``.
            ProtocolError: a malformed or oversized frame; its descriptors are closed.
        """
        until = time.monotonic() + deadline_s
        header, fds = self._read_header(until, deadline_s)
        try:
            num_bytes, num_fds = _HEADER.unpack(header)
            if num_bytes > MAX_MESSAGE_BYTES or num_fds != len(fds):
                raise ProtocolError(f"a frame of {num_bytes} bytes, {len(fds)} of {num_fds} descriptors")
            return decode(self._read(num_bytes, until, deadline_s)), fds
        except BaseException:
            close_all(fds)
            raise

    def check_peer(self) -> None:
        """Raise ``PeerLost`` if the peer closed its end or died; never waits."""
        try:
            self._socket.setblocking(False)
            if self._socket.recv(1, socket.MSG_PEEK) == b"":
                raise self._lost(None)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None

    def close(self) -> None:
        """Close this end; the peer's next wait raises ``PeerLost``."""
        self._socket.close()

    def _read_header(self, until: float, deadline_s: float) -> tuple[bytes, list[int]]:
        fds: list[int] = []
        try:
            self._arm(until, deadline_s)
            data, fds = _receive_fds(self._socket, _HEADER.size)
            if not data:
                raise self._lost(None)
            return data + self._read(_HEADER.size - len(data), until, deadline_s), fds
        except TimeoutError:
            raise self._late("waiting for a message", deadline_s) from None
        except OSError as error:
            close_all(fds)
            raise self._lost(error) from None

    def _read(self, num_bytes: int, until: float, deadline_s: float) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            self._arm(until, deadline_s)
            try:
                chunk = self._socket.recv(min(_CHUNK_BYTES, num_bytes - len(data)))
            except TimeoutError:
                raise self._late("reading a message", deadline_s) from None
            except OSError as error:
                raise self._lost(error) from None
            if not chunk:
                raise self._lost(None)
            data += chunk
        return bytes(data)

    def _arm(self, until: float, deadline_s: float) -> None:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise self._late("waiting for a message", deadline_s)
        self._socket.settimeout(remaining)

    def _late(self, doing: str, deadline_s: float) -> DeadlineExceeded:
        state = process_state(self.peer_pid)
        return DeadlineExceeded(f"{doing}: nothing for {deadline_s:g} s; peer {self.peer_pid} is {state}")

    def _lost(self, error: OSError | None) -> PeerLost:
        state = process_state(self.peer_pid)
        return PeerLost(
            f"peer {self.peer_pid} closed the channel; it is {state}{f' ({error})' if error else ''}"
        )


def _receive_fds(connection: socket.socket, num_bytes: int) -> tuple[bytes, list[int]]:
    """Up to ``num_bytes`` and the descriptors beside them, not inheritable.

    ``socket.recv_fds`` drops its flags (CPython 3.11), so descriptors would leak into children.
    """
    room = socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES)
    data, ancillary, _, _ = connection.recvmsg(num_bytes, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % _FD_BYTES])
    return data, list(fds)


def peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end when it connected: ``SO_PEERCRED``."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(data)
    return pid, uid, gid


def process_state(pid: int) -> str:
    """What ``/proc`` says of ``pid``: running, sleeping, stopped, zombie, gone, ..."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "gone"
    state = next(line for line in status.splitlines() if line.startswith("State:"))
    return state.split("(")[-1].rstrip(")")


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that nobody will use."""
    for fd in fds:
        os.close(fd)
