"""How the trainer's messages reach the worker: over the channel, or one RPC a message."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from wsync_lab.channel.link import Link
from wsync_lab.channel.messages import PROTOCOL_VERSION, Hello, Message, decode, encode
from wsync_lab.channel.rendezvous import Listener
from wsync_lab.errors import DeadlineExceeded, PeerLost, ProtocolError, WsyncError

_POLL_S = 0.2


class Pending(Protocol):
    """A call under way on the engine."""

    def result(self, timeout_s: float) -> Any:
        """Its value; raises what the call raised, or ``TimeoutError``."""
        ...


class EngineClient(Protocol):
    """The trainer's handle on its engine: an actor, another process, a thread."""

    def submit(self, method: str, *args: Any) -> Pending:
        """Start ``method`` of ``engines.Engine``: attach, serve, handle, outcome, detach."""
        ...


class Carrier(ABC):
    """Posts messages to one worker and receives its replies, in order.

    ``prefix`` of the engine's methods: empty for weights, ``adapter_`` for adapters.
    """

    def __init__(self, engine: EngineClient, deadline_s: float, prefix: str = "") -> None:
        self._engine, self._prefix = engine, prefix
        self._deadline_s = deadline_s

    @abstractmethod
    def start(self) -> None:
        """Let the engine enter an update."""

    def post(self, message: Message, payload: bytes | None = None) -> None:
        """Send without waiting for the reply."""
        self.post_body(encode(message), payload)

    @abstractmethod
    def post_body(self, body: bytes, payload: bytes | None = None) -> None:
        """``post``, of a message that is encoded."""

    @abstractmethod
    def receive(self) -> Message:
        """The next reply."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """The engine's outcome of the update, once it has left it."""

    def _submit(self, method: str, *args: Any) -> Pending:
        return self._engine.submit(f"{self._prefix}{method}", *args)

    def check_peer(self) -> None:
        """Raise ``PeerLost`` if it is known that the worker is gone; never waits."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection up; the worker notices at once where there is a channel."""

    def _result(self, pending: Pending) -> Any:
        try:
            return pending.result(self._deadline_s)
        except WsyncError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"the engine's RPC did not return in {self._deadline_s:g} s") from None
        except Exception as error:  # whatever the RPC layer and the engine raise
            raise PeerLost(f"the engine's RPC failed: {type(error).__name__}: {error}") from error


class ChannelCarrier(Carrier):
    """Messages over the unix socket; the engine makes one worker RPC an update."""

    def __init__(self, engine: EngineClient, deadline_s: float, link: Link, prefix: str = "") -> None:
        super().__init__(engine, deadline_s, prefix)
        self._serving: Pending | None = None
        self._link = link

    def offer(self, offer: Message, fds: Sequence[int]) -> None:
        """Send the offer, with the descriptors of the slots."""
        self._link.send(offer, fds, deadline_s=self._deadline_s)

    def start(self) -> None:
        self._serving = self._submit("serve")

    def post_body(self, body: bytes, payload: bytes | None = None) -> None:
        self._link.send_body(body, deadline_s=self._deadline_s)

    def receive(self) -> Message:
        message, _ = self._link.receive(deadline_s=self._deadline_s)
        return message

    def finish(self) -> dict[str, Any]:
        if self._serving is None:
            raise ProtocolError("no update was started")
        outcome: dict[str, Any] = self._result(self._serving)
        return outcome

    def check_peer(self) -> None:
        self._link.check_peer()

    def close(self) -> None:
        self._link.close()


class RpcCarrier(Carrier):
    """Messages, and payloads with them, through the engine's RPC: transport ``cpu``."""

    def __init__(self, engine: EngineClient, deadline_s: float, offer: Message, prefix: str = "") -> None:
        super().__init__(engine, deadline_s, prefix)
        self._replies: deque[Pending] = deque()
        self.post(offer)

    def start(self) -> None:
        self._replies.clear()

    def post_body(self, body: bytes, payload: bytes | None = None) -> None:
        self._replies.append(self._submit("handle", body, payload))

    def receive(self) -> Message:
        if not self._replies:
            raise ProtocolError("no call is under way whose reply could come")
        return decode(self._result(self._replies.popleft()))

    def finish(self) -> dict[str, Any]:
        outcome: dict[str, Any] = self._result(self._submit("outcome"))
        return outcome

    def close(self) -> None:
        self._replies.clear()


def accept_worker(listener: Listener, attaching: Pending, deadline_s: float) -> Link:
    """The worker that ``attaching`` sends to ``listener``, unless its engine fails first.

    Raises:
        ProtocolError: it speaks another protocol.
        DeadlineExceeded, PeerLost: it did not come; what the engine raised, if that ended.
    """
    link = _accept(listener, attaching, deadline_s)
    try:
        hello, _ = link.receive(deadline_s=deadline_s)
        if not isinstance(hello, Hello) or hello.protocol != PROTOCOL_VERSION:
            raise ProtocolError(f"the worker speaks another protocol than {PROTOCOL_VERSION}: {hello}")
    except BaseException:
        link.close()
        raise
    return link


def _accept(listener: Listener, attaching: Pending, deadline_s: float) -> Link:
    until = time.monotonic() + deadline_s
    while True:
        try:
            return listener.accept(deadline_s=_POLL_S)
        except TimeoutError:
            _raise_if_ended(attaching)
            if time.monotonic() > until:
                raise


def _raise_if_ended(attaching: Pending) -> None:
    try:
        attaching.result(0.0)
    except TimeoutError:
        return
    raise PeerLost("the engine attached to no trainer and gave no reason")
