"""The engine end of a colocated pair: carries messages between a trainer and a ``Receiver``."""

import dataclasses
import os
from typing import Any

from wsync_lab.channel.link import Link
from wsync_lab.channel.messages import (
    PROTOCOL_VERSION,
    Begin,
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
from wsync_lab.protocol.receiver import Applier, Receiver

_ATTACH_DEADLINE_S = 60.0


class WorkerEndpoint:
    """What an inference worker exposes to its engine: attach, serve, handle, detach.

    Args:
        applier: how this worker's engine takes weights.
        rank: this worker's rank, for error texts.
        deadline_s: longest wait for the trainer's next message within an update.
    """

    def __init__(self, applier: Applier, rank: int = 0, deadline_s: float = 120.0) -> None:
        self._receiver = Receiver(applier)
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
                self._exchange(self._first_message())
                while self._receiver.outcome is None:
                    self._exchange(self._receive())
        except WsyncError as error:
            self._receiver.fail(f"{type(error).__name__}: {error}")
            self.detach()
        return self.outcome() or {}

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

    def _first_message(self) -> Message:
        """The next ``Begin``: what a failed update left in the channel is skipped."""
        while not isinstance(message := self._receive(), Begin):
            pass
        return message

    def _receive(self) -> Message:
        if self._link is None:
            raise ProtocolError(f"worker {self._rank} is not attached: attach before serving")
        message, _ = self._link.receive(deadline_s=self._deadline_s)
        return message

    def _exchange(self, message: Message) -> None:
        reply = self._receiver.handle(message)
        assert self._link is not None
        self._link.send(reply, deadline_s=self._deadline_s)
        if isinstance(reply, Started):
            self._receiver.join(self._deadline_s, self._link.check_peer)
