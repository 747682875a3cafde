"""The worker's half of the update protocol: a message in, a reply out, no I/O of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.channel.messages import (
    Abort,
    Accepted,
    Begin,
    Commit,
    Done,
    Failed,
    Message,
    Offer,
    Prepared,
    Seal,
    SlotFree,
    SlotReady,
    Started,
)
from wsync_lab.digest import tensor_digests
from wsync_lab.errors import ProtocolError, UpdateRejected
from wsync_lab.lora.base import base_digest
from wsync_lab.packing import check_plan
from wsync_lab.protocol.outcome import UpdateOutcome
from wsync_lab.protocol.phases import seconds_of
from wsync_lab.transports import open_reader
from wsync_lab.transports.base import SlotReader
from wsync_lab.unpacking import NamedTensors, Unpacker
from wsync_lab.weights import TensorMeta

Result = TypeVar("Result")


class Applier(Protocol):
    """How an engine takes new weights. Lives in the inference worker's process."""

    device: torch.device

    def check(self, tensors: Sequence[TensorMeta], aliases: Mapping[str, str]) -> list[str]:
        """Every reason why these weights do not fit the engine, which is not touched."""
        ...

    def begin(self) -> None:
        """An update starts."""
        ...

    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Take whole tensors: views into a slot that is overwritten after the return."""
        ...

    def replay(self, bucket: int, payload: torch.Tensor) -> bool:
        """Take a whole bucket by copies learnt earlier; False, and nothing done, without them."""
        ...

    def learning(self, bucket: int, payload: torch.Tensor, num_bytes: int) -> AbstractContextManager[None]:
        """Entered around the ``load`` of a bucket whose pieces have ``num_bytes`` bytes."""
        ...

    def forget(self) -> None:
        """The slots are unmapped next: keep nothing that refers to them."""
        ...

    def finish(self) -> None:
        """The manifest is complete: make it live."""
        ...

    def rollback(self) -> None:
        """The update failed after ``begin``: leave an engine that a later full update mends."""
        ...


class LoadsOnly:
    """What an ``Applier`` answers that learns nothing."""

    def replay(self, bucket: int, payload: torch.Tensor) -> bool:
        return False

    def learning(self, bucket: int, payload: torch.Tensor, num_bytes: int) -> AbstractContextManager[None]:
        return nullcontext()

    def forget(self) -> None:
        """There is nothing to forget."""


class Receiver:
    """State of one worker: the agreed plan, the mapped slots, and the update under way.

    ``handle`` never raises for what a peer or an engine does wrong: it rolls the update back
    and replies ``Failed``. ``outcome`` is None while an update runs. ``base_digest`` is that of
    the weights of the last commit (``lora.base.base_digest``), None if it was not verified.
    """

    opening: type[Message] = Begin

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self._reader: SlotReader | None = None
        self._unpacker: Unpacker | None = None
        self._target, self._touched, self._prepared = 0, False, False
        self._apply_s = self._ring_s = 0.0
        self._digests: dict[str, int] | None = None
        self.weight_version = 0
        self.base_digest: str | None = None
        self.outcome: UpdateOutcome | None = None

    def handle(self, message: Message, payload: bytes | None = None, fds: Sequence[int] = ()) -> Message:
        """The reply to ``message``; ``payload`` and ``fds`` are what travelled beside it."""
        try:
            return self._dispatch(message, payload, fds)
        except Exception as error:  # the engine's own exceptions are of any type
            return self.fail(f"{type(error).__name__}: {error}")

    def fail(self, reason: str) -> Failed:
        """End the update under way, if any, because of ``reason``."""
        self._end(committed=False, reason=reason)
        return Failed(reason)

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None:
        """Meet the trainer's end of the transport, once the reply to it was sent."""
        if self._reader is not None:
            self._reader.join(deadline_s, check_peer)

    def close(self) -> None:
        """Give up an update under way and unmap the slots; a new offer may follow."""
        if self._unpacker is not None:
            self.fail("the worker was detached from its trainer")
        self._applier.forget()
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def _dispatch(self, message: Message, payload: bytes | None, fds: Sequence[int]) -> Message:
        handlers: dict[type[Message], Callable[[Any], Message]] = {
            Offer: lambda offer: self._offer(offer, fds),
            Begin: self._begin,
            SlotReady: lambda ready: self._bucket(ready, payload),
            Seal: self._seal,
            Commit: self._commit,
            Abort: self._abort,
        }
        if type(message) not in handlers:
            raise ProtocolError(f"{type(message).__name__} is not for an inference worker")
        return handlers[type(message)](message)

    def _offer(self, offer: Offer, fds: Sequence[int]) -> Accepted:
        self.close()
        try:
            check_plan(offer.plan)
            faults = self._applier.check(offer.plan.tensors, offer.plan.aliases)
            if faults:
                raise UpdateRejected("; ".join(faults))
        except BaseException:
            close_all(fds)
            raise
        self._reader = open_reader(offer.plan, offer.slots, fds, self._applier.device)
        self._plan, self._num_slots, self._held = offer.plan, offer.slots.num_slots, offer.slots.held
        return Accepted(offer.plan.digest)

    def _begin(self, begin: Begin) -> Started:
        if self._unpacker is not None:
            raise ProtocolError("an update is under way: end it before the next")
        self._target, self._prepared = begin.weight_version, False
        self.outcome, self._apply_s, self._ring_s = None, 0.0, 0.0
        if self._reader is None or begin.plan_digest != self._plan.digest:
            raise ProtocolError("the update follows another plan than the one agreed at init: connect again")
        if begin.weight_version <= self.weight_version:
            raise ProtocolError(
                f"version {begin.weight_version} is not above {self.weight_version}: versions only rise"
            )
        self._unpacker = Unpacker(self._plan)
        if not self._held:
            self._ring_s += seconds_of(self._reader.take)
        self._digests = {} if begin.verify else None
        return Started(begin.weight_version)

    def _bucket(self, ready: SlotReady, payload: bytes | None) -> SlotFree:
        unpacker, reader = self._active()
        if ready.slot != ready.bucket % self._num_slots or ready.bucket >= len(self._plan.buckets):
            raise ProtocolError(f"bucket {ready.bucket} in slot {ready.slot} is not in the plan")
        self._touch()
        view = reader.read(ready.slot, self._plan.buckets[ready.bucket].num_bytes, payload)
        self._timed(lambda: self._apply(ready.bucket, view, unpacker))
        self._timed(reader.release)
        return SlotFree(ready.slot)

    def _seal(self, seal: Seal) -> Prepared:
        unpacker, _ = self._active()
        if seal.weight_version != self._target:
            raise ProtocolError(f"sealed as version {seal.weight_version}, begun as {self._target}")
        unpacker.check_complete()
        self._touch()
        if empty := unpacker.empty_tensors(self._applier.device):
            self._note_digests(empty)
            self._timed(lambda: self._applier.load(empty))
        self._check_digests(seal.digests)
        self._timed(self._applier.finish)
        self._prepared = True
        return Prepared(self._target, self._apply_s)

    def _commit(self, commit: Commit) -> Done:
        self._active()
        if not self._prepared or commit.weight_version != self._target:
            raise ProtocolError(f"commit of version {commit.weight_version}, which is not prepared")
        self.weight_version = commit.weight_version
        self.base_digest = None if self._digests is None else base_digest(self._digests)
        self._end(committed=True, reason="")
        return Done(commit.weight_version, committed=True)

    def _abort(self, abort: Abort) -> Done:
        self._end(committed=False, reason=f"aborted by the trainer: {abort.reason}")
        return Done(abort.weight_version, committed=False)

    def _active(self) -> tuple[Unpacker, SlotReader]:
        if self._unpacker is None or self._reader is None:
            raise ProtocolError("no update was begun")
        return self._unpacker, self._reader

    def _apply(self, bucket: int, payload: torch.Tensor, unpacker: Unpacker) -> None:
        if self._digests is not None:
            tensors = unpacker.accept(bucket, payload)
            self._note_digests(tensors)
        if self._applier.replay(bucket, payload):
            if self._digests is None:
                unpacker.skip(bucket)
            return
        if self._digests is None:
            tensors = unpacker.accept(bucket, payload)
        num_bytes = sum(piece.num_bytes for piece in self._plan.buckets[bucket].pieces)
        with self._applier.learning(bucket, payload, num_bytes):
            self._applier.load(tensors)

    def _note_digests(self, tensors: NamedTensors) -> None:
        if self._digests is not None:
            names = [name for name, _ in tensors]
            digests = tensor_digests([tensor for _, tensor in tensors])
            self._digests |= dict(zip(names, digests, strict=True))

    def _check_digests(self, sent: tuple[int, ...]) -> None:
        if self._digests is None:
            return
        received = [self._digests[meta.name] for meta in self._plan.tensors]
        pairs = zip(self._plan.tensors, sent, received, strict=True)
        wrong = [meta.name for meta, there, here in pairs if there != here]
        if wrong:
            raise UpdateRejected(f"{len(wrong)} tensors arrived with other bytes, first {wrong[0]}")

    def _touch(self) -> None:
        if not self._touched:
            self._touched = True
            self._timed(self._applier.begin)

    def _timed(self, call: Callable[[], Result]) -> Result:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self._apply_s += time.perf_counter() - start

    def _end(self, *, committed: bool, reason: str) -> None:
        began, self._unpacker = self._unpacker is not None, None
        if self.outcome is not None:
            return
        if self._touched and not committed:
            self.base_digest = None
            reason = self._rolled_back(reason)
        if self._reader is not None and not committed:
            self._reader.reset()
        if self._reader is not None and began and not self._held:
            self._ring_s += seconds_of(self._reader.give_back)
        times = self._apply_s, self._ring_s
        self.outcome = UpdateOutcome(self._target, committed, self._touched, reason, *times)
        self._touched = False

    def _rolled_back(self, reason: str) -> str:
        try:
            self._applier.rollback()
        except Exception as error:
            return f"{reason}; and the engine could not be put in order: {type(error).__name__}: {error}"
        return reason
