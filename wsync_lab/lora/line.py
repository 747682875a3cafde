"""One trainer rank, one worker: the messages of an adapter update, in their order."""

from collections.abc import Mapping
from typing import TypeVar

import torch

from wsync_lab.channel.messages import (
    Abort,
    Accepted,
    AdapterBegin,
    AdapterBucket,
    Commit,
    Done,
    Failed,
    Message,
    Prepared,
    Seal,
    SlotFree,
    Started,
)
from wsync_lab.config import SyncConfig
from wsync_lab.errors import ProtocolError, UpdateRejected
from wsync_lab.lora.manifest import AdapterManifest
from wsync_lab.packing import Plan
from wsync_lab.protocol.carrier import Carrier
from wsync_lab.protocol.phases import SyncClock
from wsync_lab.protocol.stream import PackedBuckets, StreamPacker
from wsync_lab.transports.base import SlotWriter

Reply = TypeVar("Reply", bound=Message)


class Line:
    """A carrier and the slots behind it. Over RPC it speaks to all workers of an engine at once."""

    def __init__(self, carrier: Carrier, writer: SlotWriter, config: SyncConfig) -> None:
        self.carrier, self.writer, self._config = carrier, writer, config
        self._update_id = 0
        self._ended = True

    def accepted(self, capacity: Plan) -> None:
        """Take the answer to the offer, and meet the worker's end of the transport."""
        if self._expect(Accepted).plan_digest != capacity.digest:
            raise ProtocolError("the worker accepted other slots than were offered")
        self.writer.join(self._config.deadline_s, self.carrier.check_peer)

    def begin(self, manifest: AdapterManifest, plan: Plan) -> None:
        self._update_id, self._ended = manifest.update_id, False
        self.carrier.post(AdapterBegin(manifest, plan, manifest.digest))

    def started(self) -> None:
        self._expect(Started)
        self.writer.join(self._config.deadline_s, self.carrier.check_peer)

    def stream(self, plan: Plan, tensors: Mapping[str, torch.Tensor], clock: SyncClock) -> None:
        """Fill and hand over one slot after another, as the worker frees them."""
        packer = StreamPacker(plan, iter(tensors.items()), PackedBuckets(plan), clock, verify=False)
        num_slots = self._config.num_slots
        for index, bucket in enumerate(plan.buckets):
            if index >= num_slots:
                self._expect(SlotFree)
            packer.fill(index, self.writer.slot(index % num_slots))
            with clock.phase("pack"):
                payload = self.writer.publish(index % num_slots, bucket.num_bytes)
            self.carrier.post(AdapterBucket(self._update_id, index, index % num_slots), payload)
        for _ in range(min(num_slots, len(plan.buckets))):
            self._expect(SlotFree)
        packer.finish()

    def seal(self) -> float:
        """Seconds that the worker spent on taking the adapter."""
        self.carrier.post(Seal(self._update_id))
        return self._expect(Prepared).apply_s

    def commit(self) -> None:
        self.carrier.post(Commit(self._update_id))
        self._ended = self._expect(Done).committed
        if not self._ended:
            raise UpdateRejected("the worker did not commit")

    def abort(self, update_id: int, reason: str) -> None:
        """Let a worker that is still in the update leave it."""
        if not self._ended:
            self._ended = True
            self.carrier.post(Abort(update_id, reason))
            while not isinstance(self.carrier.receive(), Done | Failed):
                pass
        self.writer.reset()

    def close(self) -> None:
        self.carrier.close()
        self.writer.close()

    def _expect(self, kind: type[Reply]) -> Reply:
        reply = self.carrier.receive()
        if isinstance(reply, Failed):
            # A worker behind a channel has left the update with this. Behind an RPC there may be
            # others that have not.
            self._ended = not self.writer.one_rpc_per_bucket
            raise UpdateRejected(reply.reason)
        if not isinstance(reply, kind):
            raise ProtocolError(f"{type(reply).__name__} instead of {kind.__name__}")
        return reply
