"""The worker's half of an adapter update: idle, receiving, prepared, then committed or aborted.

Buckets fill a shadow; a commit needs every byte in place; whatever goes wrong drops the shadow.
What is served changes after a commit alone: once every worker has committed, the engine has each
of them ``keep`` that update. Messages name their update. One that comes twice is answered as it
was the first time, one of an update that has ended changes nothing, and a newer update takes the
place of one that is under way: its trainer is gone, or was replaced.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.channel.messages import (
    Abort,
    Accepted,
    AdapterBegin,
    AdapterBucket,
    Commit,
    Done,
    Failed,
    Message,
    Offer,
    Prepared,
    Seal,
    SlotFree,
    Started,
)
from wsync_lab.errors import ProtocolError, UpdateRejected
from wsync_lab.lora.manifest import AdapterManifest
from wsync_lab.lora.shadow import ShadowAdapter
from wsync_lab.packing import check_plan
from wsync_lab.protocol.outcome import UpdateOutcome
from wsync_lab.transports import open_reader
from wsync_lab.transports.base import SlotReader


class AdapterHost(Protocol):
    """How an engine takes adapters. Lives in the inference worker's process."""

    device: torch.device

    def faults(self, manifest: AdapterManifest) -> list[str]:
        """Every reason why the engine cannot take this adapter; see ``manifest.AdapterTargets``."""
        ...

    def stage(self, manifest: AdapterManifest, tensors: dict[str, torch.Tensor]) -> None:
        """Hold the adapter ready to serve, beside the one that is served. Owns ``tensors``."""
        ...

    def discard(self, update_id: int) -> None:
        """Free what was staged of ``update_id``, wholly, in part or not at all."""
        ...

    def keep(self, update_id: int) -> None:
        """Serve ``update_id`` (0 is no adapter), which is staged or served; free all others."""
        ...


class AdapterReceiver:
    """State of one worker; ``weight_version`` is the ``update_id`` of the last commit, or 0.

    ``handle`` never raises for what a peer or an engine does wrong: it replies ``Failed``.
    """

    opening: type[Message] = AdapterBegin

    def __init__(self, host: AdapterHost) -> None:
        self._host = host
        self._reader: SlotReader | None = None
        self._slot_bytes = self._num_slots = 0
        self._update: _Update | None = None
        self._last_id = 0  # of every update that ever began
        self.weight_version = 0
        self.outcome: UpdateOutcome | None = None

    def handle(self, message: Message, payload: bytes | None = None, fds: Sequence[int] = ()) -> Message:
        """The reply to ``message``; ``payload`` and ``fds`` are what travelled beside it."""
        try:
            return self._dispatch(message, payload, fds)
        except _Stale as error:
            return self._refuse(str(error))
        except Exception as error:  # the engine's own exceptions are of any type
            reason = f"{type(error).__name__}: {error}"
            return self._refuse(reason) if self._update is None else self.fail(reason)

    def fail(self, reason: str) -> Failed:
        """Drop the update under way, if any, because of ``reason``."""
        if self._update is not None:
            self._host.discard(self._update.manifest.update_id)
            self._end(committed=False, reason=reason)
        return Failed(reason)

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None:
        """Meet the trainer's end of the transport, once the reply to it was sent."""
        if self._reader is not None:
            self._reader.join(deadline_s, check_peer)

    def close(self) -> None:
        """Give up an update under way and unmap the slots; a new offer may follow."""
        self.fail("the worker was detached from its trainer")
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def _dispatch(self, message: Message, payload: bytes | None, fds: Sequence[int]) -> Message:
        handlers: dict[type[Message], Callable[[Any], Message]] = {
            Offer: lambda offer: self._offer(offer, fds),
            AdapterBegin: self._begin,
            AdapterBucket: lambda bucket: self._bucket(bucket, payload),
            Seal: self._seal,
            Commit: self._commit,
            Abort: self._abort,
        }
        if type(message) not in handlers:
            raise ProtocolError(f"{type(message).__name__} is not for the adapters of an inference worker")
        return handlers[type(message)](message)

    def _offer(self, offer: Offer, fds: Sequence[int]) -> Accepted:
        """The plan of an offer says how large a slot is; each update brings a plan of its own."""
        self.close()
        try:
            check_plan(offer.plan)
        except BaseException:
            close_all(fds)
            raise
        self._reader = open_reader(offer.plan, offer.slots, fds, self._host.device)
        self._slot_bytes, self._num_slots = offer.plan.high_water_bytes, offer.slots.num_slots
        return Accepted(offer.plan.digest)

    def _begin(self, begin: AdapterBegin) -> Started:
        update_id = begin.manifest.update_id
        if self._update is not None and update_id == self._update.manifest.update_id:
            return self._again(begin)
        if update_id <= self._last_id:
            raise _Stale(f"update {update_id} is not above {self._last_id}: each has a new id, and ids rise")
        self.fail(f"update {update_id} took its place")
        self._last_id, self.outcome = update_id, None
        self._update = _Update(begin.manifest)
        self._check(begin)
        self._update.shadow = ShadowAdapter(begin.manifest, begin.plan, self._host.device)
        return Started(update_id)

    def _again(self, begin: AdapterBegin) -> Started:
        assert self._update is not None
        if begin.digest != self._update.manifest.digest:
            raise ProtocolError(f"update {begin.manifest.update_id} began with another manifest")
        return Started(begin.manifest.update_id)

    def _check(self, begin: AdapterBegin) -> None:
        """Before anything is allocated."""
        if begin.digest != begin.manifest.digest:
            raise ProtocolError("the manifest arrived changed: its digest is another")
        check_plan(begin.plan)
        if begin.plan.tensors != begin.manifest.tensors or begin.plan.aliases:
            raise ProtocolError("the plan is not that of the manifest")
        if begin.plan.high_water_bytes > self._slot_bytes:
            raise ProtocolError(
                f"a bucket of {begin.plan.high_water_bytes} bytes, slots of {self._slot_bytes}"
            )
        if faults := self._host.faults(begin.manifest):
            raise UpdateRejected("; ".join(faults))

    def _bucket(self, ready: AdapterBucket, payload: bytes | None) -> SlotFree:
        update = self._current(ready.update_id)
        if self._reader is None or ready.slot >= self._num_slots:
            raise ProtocolError(f"bucket {ready.bucket} is in slot {ready.slot} of {self._num_slots}")
        if not update.shadow.has(ready.bucket):
            num_bytes = update.shadow.num_bytes(ready.bucket)
            start = time.perf_counter()
            update.shadow.accept(ready.bucket, self._reader.read(ready.slot, num_bytes, payload))
            self._reader.release()
            update.apply_s += time.perf_counter() - start
        return SlotFree(ready.slot)

    def _seal(self, seal: Seal) -> Prepared:
        update = self._current(seal.weight_version)
        if not update.prepared:
            start = time.perf_counter()
            update.shadow.check()
            self._host.stage(update.manifest, update.shadow.tensors)
            update.prepared = True
            update.apply_s += time.perf_counter() - start
        return Prepared(seal.weight_version, update.apply_s)

    def _commit(self, commit: Commit) -> Done:
        if commit.weight_version == self.weight_version:
            return Done(commit.weight_version, committed=True)
        if not self._current(commit.weight_version).prepared:
            raise ProtocolError(f"commit of update {commit.weight_version}, which is not prepared")
        self.weight_version = commit.weight_version
        self._end(committed=True, reason="")
        return Done(commit.weight_version, committed=True)

    def _abort(self, abort: Abort) -> Done:
        if abort.weight_version == self.weight_version:
            raise _Stale(f"update {abort.weight_version} is committed: it cannot be aborted")
        if self._update is not None and self._update.manifest.update_id == abort.weight_version:
            self.fail(f"aborted by the trainer: {abort.reason}")
        return Done(abort.weight_version, committed=False)

    def _refuse(self, reason: str) -> Failed:
        """The trainer gives up what it wanted to begin, and its end of the slots starts afresh."""
        if self._update is None and self._reader is not None:
            self._reader.reset()
        return Failed(reason)

    def _current(self, update_id: int) -> "_Update":
        """The update under way, if the message is about it."""
        if self._update is None or self._update.manifest.update_id != update_id:
            raise _Stale(f"update {update_id} is not under way: begin it again under a new id")
        return self._update

    def _end(self, *, committed: bool, reason: str) -> None:
        assert self._update is not None
        if self._reader is not None and not committed:
            self._reader.reset()
        update, self._update = self._update, None
        update_id = update.manifest.update_id
        self.outcome = UpdateOutcome(update_id, committed, False, reason, update.apply_s, 0.0)


class _Update:
    """One that is under way."""

    shadow: ShadowAdapter

    def __init__(self, manifest: AdapterManifest) -> None:
        self.manifest = manifest
        self.prepared = False
        self.apply_s = 0.0


class _Stale(Exception):
    """A message that has no effect on what is under way."""
