"""The engine end of a colocated pair: carries messages between a trainer and a ``Receiver``."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from wsync_lab.channel.link import Link
from wsync_lab.channel.messages import (
    PROTOCOL_VERSION,
    Failed,
    Hello,
    Message,
    Started,
    decode,
    encode,
)
from wsync_lab.channel.rendezvous import connect
from wsync_lab.errors import ProtocolError, UpdateRejected, WsyncError
from wsync_lab.protocol.host_threads import half_of_the_cores
from wsync_lab.protocol.outcome import UpdateOutcome

_ATTACH_DEADLINE_S = 60.0


class MessageHandler(Protocol):
    """A worker's half of a protocol: ``receiver.Receiver``, ``lora.receiver.AdapterReceiver``.

    ``opening`` is the message that begins an update; ``outcome`` is None while one runs.
    """

    opening: type[Message]
    weight_version: int
    outcome: UpdateOutcome | None

    def handle(self, message: Message, payload: bytes | None = None, fds: Sequence[int] = ()) -> Message: ...

    def fail(self, reason: str) -> Failed: ...

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class WorkerEndpoint:
    """What an inference worker exposes to its engine: attach, serve, handle, detach.

    Args:
        receiver: what the messages are for.
        rank: this worker's rank, for error texts.
        deadline_s: longest wait for the trainer's next message within an update.
    """

    def __init__(self, receiver: MessageHandler, rank: int = 0, deadline_s: float = 120.0) -> None:
        self._receiver = receiver
        self._rank = rank
        self._deadline_s = deadline_s
        self._link: Link | None = None

    @property
    def weight_version(self) -> int:
        return self._receiver.weight_version

    def attach(self, address: str) -> None:
        """Connect to the trainer listening at ``address``; take and check its offer.

        Raises:
            UpdateRejected: the offered manifest does not fit the engine; lists all faults.
            ProtocolError: nothing listens there, or not one of ours.
        """
        self.detach()
        link = connect(address, deadline_s=_ATTACH_DEADLINE_S)
        try:
            link.send(Hello(PROTOCOL_VERSION, os.getpid(), self._rank), deadline_s=_ATTACH_DEADLINE_S)
            offer, fds = link.receive(deadline_s=_ATTACH_DEADLINE_S)
            reply = self._receiver.handle(offer, fds=fds)
            link.send(reply, deadline_s=_ATTACH_DEADLINE_S)
            if isinstance(reply, Failed):
                raise UpdateRejected(reply.reason)
            self._receiver.join(_ATTACH_DEADLINE_S, link.check_peer)
        except BaseException:
            link.close()
            self._receiver.close()
            raise
        self._link = link

    def serve(self) -> dict[str, Any]:
        """Take part in one update over the channel; returns its ``UpdateOutcome`` as a dict.

        A failed update is an outcome, not an exception: raising here could kill the engine.
        """
        self._receiver.outcome = None
        try:
            with half_of_the_cores():
                reply = self._exchange(self._first_message())
                while self._receiver.outcome is None and not isinstance(reply, Failed):
                    reply = self._exchange(self._receive())
        except WsyncError as error:
            reply = self._receiver.fail(f"{type(error).__name__}: {error}")
            self.detach()
        return self.outcome() or self._refused(reply)

    def handle(self, message: bytes, payload: bytes | None = None) -> bytes:
        """One message of an update that travels as one RPC a message; returns the reply."""
        return encode(self._receiver.handle(decode(message), payload))

    def outcome(self) -> dict[str, Any] | None:
        """The last update's outcome; None while one runs."""
        outcome = self._receiver.outcome
        return None if outcome is None else dataclasses.asdict(outcome)

    def detach(self) -> None:
        """Close the channel and unmap the slots."""
        if self._link is not None:
            self._link.close()
        self._link = None
        self._receiver.close()

    def _refused(self, reply: Message) -> dict[str, Any]:
        """The outcome of an update that did not begin, or whose trainer was told ``Failed``."""
        assert isinstance(reply, Failed)
        self._receiver.fail(reply.reason)
        refused = UpdateOutcome(self.weight_version, False, False, reply.reason, 0.0, 0.0)
        return self.outcome() or dataclasses.asdict(refused)

    def _first_message(self) -> Message:
        """The next update's: what a failed one left in the channel is skipped."""
        while not isinstance(message := self._receive(), self._receiver.opening):
            pass
        return message

    def _receive(self) -> Message:
        if self._link is None:
            raise ProtocolError(f"worker {self._rank} is not attached: attach before serving")
        message, _ = self._link.receive(deadline_s=self._deadline_s)
        return message

    def _exchange(self, message: Message) -> Message:
        reply = self._receiver.handle(message)
        assert self._link is not None
        self._link.send(reply, deadline_s=self._deadline_s)
        if isinstance(reply, Started):
            self._receiver.join(self._deadline_s, self._link.check_peer)
        return reply
