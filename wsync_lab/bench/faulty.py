"""A carrier that does one thing wrong with one message, once: what networks and processes do."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from wsync_lab.channel.messages import AdapterBucket, Message, decode, encode
from wsync_lab.lora.line import Line
from wsync_lab.protocol.carrier import Carrier

Kind = Literal[
    "drop", "duplicate", "reorder", "truncate", "corrupt", "corrupt_payload", "kill_trainer", "kill_worker"
]
Direction = Literal["request", "reply"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the ``at``-th message of an update in one direction, from 0.

    ``bit`` says which bit of the message ``corrupt`` flips, counted round its length;
    ``corrupt_payload`` flips one in the slot, or in what travels beside the message.
    """

    kind: Kind
    direction: Direction
    at: int
    bit: int = 0


class FaultyCarrier(Carrier):
    """The carrier of a line, with ``fault``; ``kill_worker`` ends the engine's process."""

    def __init__(self, line: Line, fault: Fault, kill_worker: Callable[[], None]) -> None:
        self._inner, self._writer = line.carrier, line.writer
        self._fault, self._kill_worker = fault, kill_worker
        self._posted = self._received = 0
        self._late: tuple[bytes, bytes | None] | None = None
        self._again: Message | None = None

    def start(self) -> None:
        self._inner.start()

    def post_body(self, body: bytes, payload: bytes | None = None) -> None:
        self._posted += 1
        if self._meets("request", self._posted):
            self._spoil(body, payload)
            return
        self._inner.post_body(body, payload)
        if self._late is not None:
            late, self._late = self._late, None
            self._inner.post_body(*late)

    def receive(self) -> Message:
        if self._again is not None:
            message, self._again = self._again, None
            return message
        message = self._inner.receive()
        self._received += 1
        return self._spoilt(message) if self._meets("reply", self._received) else message

    def finish(self) -> dict[str, Any]:
        return self._inner.finish()

    def check_peer(self) -> None:
        self._inner.check_peer()

    def close(self) -> None:
        self._inner.close()

    def _meets(self, direction: Direction, number: int) -> bool:
        return (direction, number - 1) == (self._fault.direction, self._fault.at)

    def _spoil(self, body: bytes, payload: bytes | None) -> None:
        """Send ``body`` as the fault will have it."""
        kind = self._fault.kind
        if kind == "kill_trainer":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "kill_worker":
            self._kill_worker()
        if kind == "corrupt_payload":
            payload = self._corrupt_payload(decode(body), payload)
        if kind == "reorder":
            self._late = body, payload
        elif kind != "drop":
            self._inner.post_body(self._changed(body), payload)
        if kind == "duplicate":
            self._inner.post_body(body, payload)

    def _spoilt(self, message: Message) -> Message:
        kind = self._fault.kind
        if kind == "drop":
            return self._inner.receive()
        if kind == "duplicate":
            self._again = message
        if kind == "reorder":
            self._again, message = message, self._inner.receive()
        return decode(self._changed(encode(message)))

    def _corrupt_payload(self, message: Message, payload: bytes | None) -> bytes | None:
        assert isinstance(message, AdapterBucket)
        if payload is None:
            self._writer.slot(message.slot)[9] ^= 1
            return None
        return payload[:-9] + bytes([payload[-9] ^ 1]) + payload[-8:]

    def _changed(self, body: bytes) -> bytes:
        if self._fault.kind == "truncate":
            return body[: len(body) // 2]
        if self._fault.kind != "corrupt":
            return body
        byte, bit = divmod(self._fault.bit % (8 * len(body)), 8)
        return body[:byte] + bytes([body[byte] ^ (1 << bit)]) + body[byte + 1 :]
