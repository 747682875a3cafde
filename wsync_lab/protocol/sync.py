"""The trainer's half of the update protocol."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from wsync_lab import transports
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
from wsync_lab.channel.rendezvous import Listener
from wsync_lab.config import SyncConfig
from wsync_lab.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerLost,
    ProtocolError,
    UpdateRejected,
    WsyncError,
)
from wsync_lab.packing import Plan, align, build_plan, check_metadata
from wsync_lab.protocol.carrier import Carrier, ChannelCarrier, EngineClient, RpcCarrier, accept_worker
from wsync_lab.protocol.host_threads import half_of_the_cores
from wsync_lab.protocol.phases import RingCost, SyncClock, SyncReport, seconds_of
from wsync_lab.protocol.stream import PackedBuckets, StreamPacker
from wsync_lab.transports.base import SlotOffer, SlotWriter
from wsync_lab.weights import WeightSource

Reply = TypeVar("Reply", bound=Message)


class WeightSync:
    """One trainer rank's connection to the inference worker of its colocated pair.

    ``prepare`` moves and applies the weights, ``commit`` publishes them; between the two, the
    ranks of a job agree that all are prepared, or all ``abort``. A rejected update leaves the
    connection usable; after ``PeerLost`` or ``DeadlineExceeded`` it is closed: connect again.
    """

    def __init__(
        self,
        source: WeightSource,
        writer: SlotWriter,
        carrier: Carrier,
        plan: Plan,
        config: SyncConfig,
        rank: int,
    ) -> None:
        """Use ``connect``."""
        self._source, self._writer, self._carrier = source, writer, carrier
        self.plan, self._rank = plan, rank
        self._num_slots, self._deadline_s = config.num_slots, config.deadline_s
        self._verify, self._hold_slots = config.verify == "digest", config.hold_slots
        self._packed = PackedBuckets(plan)
        self._clock = SyncClock()
        self._apply_s = self._ring_s = 0.0
        self._version, self._bucket = 0, 0
        self._closed = False

    @classmethod
    def connect(
        cls,
        source: WeightSource,
        engine: EngineClient,
        config: SyncConfig,
        rank: int = 0,
        device: torch.device | None = None,
    ) -> "WeightSync":
        """Agree on the plan, and map the staging slots into the inference worker.

        Args:
            device: where the weights are; slots of device transports lie there.

        Raises:
            TransportUnavailable: the transport cannot run here.
            UpdateRejected: the weights do not fit the engine; lists all faults.
        """
        plan = build_plan(source.metadata(), source.aliases(), config.slot_bytes)
        where = device or torch.device("cpu")
        writer = transports.open_writer(config.transport, plan, config.num_slots, where)
        try:
            _check_slots(config, writer)
            carrier = _connect(engine, config, plan, writer)
        except BaseException:
            writer.close()
            raise
        return cls(source, writer, carrier, plan, config, rank)

    @property
    def slot_memory(self) -> str:
        """What carried the bytes, as records name it."""
        return self._writer.slot_memory

    @property
    def collective(self) -> str | None:
        return self._writer.collective

    @property
    def one_rpc_per_bucket(self) -> bool:
        """Whether every bucket costs an RPC of the engine's; else an update costs one in all."""
        return self._writer.one_rpc_per_bucket

    @property
    def num_handles(self) -> int:
        """Descriptors that were exported, once, to map the slots."""
        return len(self._writer.fds())

    def update(self, version: int) -> SyncReport:
        """``prepare`` and ``commit`` for a job of one colocated pair."""
        self.prepare(version)
        return self.commit()

    def prepare(self, version: int) -> None:
        """Send every bucket; return when the worker has applied them all.

        Where the source is sharded this is a collective: whatever goes wrong with this pair,
        the rank first takes its part in every gather, so that no other rank is left waiting.

        Raises:
            PlanError: the model changed since ``connect``; nothing was sent.
            UpdateRejected: the worker refused or failed; the engine knows what it serves.
            PeerLost, DeadlineExceeded: the pair is broken; this connection is closed.
        """
        if self._closed:
            raise PeerLost(f"rank {self._rank}: this connection is closed: connect again")
        self._clock, self._version, self._bucket, self._ring_s = SyncClock(), version, 0, 0.0
        check_metadata(self.plan, self._source.metadata())
        tensors = iter(self._source)
        try:
            if not self._hold_slots:
                self._ring_s += seconds_of(self._writer.take)
            with self._ending_on_error(), half_of_the_cores():
                self._send(tensors)
        finally:
            for _ in tensors:
                pass

    def commit(self) -> SyncReport:
        """Publish the prepared update, and return when the engine generates with it.

        Raises:
            UpdateRejected, PeerLost, DeadlineExceeded: as in ``prepare``.
        """
        with self._ending_on_error():
            self._post(Commit(self._version))
            self._expect(Done)
            self._clock.committed()
            outcome = self._finish()
        if not outcome["committed"]:
            raise UpdateRejected(outcome["reason"])
        return self._report(outcome)

    def abort(self, reason: str) -> None:
        """Give up an update that this rank prepared, because another rank failed."""
        try:
            self._end_early(reason)
        except WsyncError:
            self.close()
            raise

    def close(self) -> None:
        """Free the slots and the channel. The engine keeps what it committed."""
        self._closed = True
        self._carrier.close()
        self._writer.close()

    def _send(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._carrier.start()
        self._post(Begin(self._version, self.plan.digest, self._verify))
        self._expect(Started)
        self._writer.join(self._deadline_s, self._carrier.check_peer)
        packer = StreamPacker(self.plan, tensors, self._packed, self._clock, self._verify)
        for index, bucket in enumerate(self.plan.buckets):
            self._bucket, slot = index, index % self._num_slots
            if index >= self._num_slots:
                self._expect(SlotFree)
            packer.fill(index, self._writer.slot(slot))
            with self._clock.phase("pack"):
                payload = self._writer.publish(slot, bucket.num_bytes)
            self._post(SlotReady(index, slot), payload)
        for _ in range(min(self._num_slots, len(self.plan.buckets))):
            self._expect(SlotFree)
        packer.finish()
        self._post(Seal(self._version, tuple(packer.digests)))
        self._apply_s = self._expect(Prepared).apply_s
        self._clock.prepared()

    def _end_early(self, reason: str) -> None:
        self._post(Abort(self._version, reason))
        while not isinstance(self._carrier.receive(), Done | Failed):
            pass
        self._writer.reset()
        self._finish()

    def _finish(self) -> dict[str, Any]:
        """The engine's outcome, once it has left the update: the slots are this end's again."""
        outcome = self._carrier.finish()
        if not self._hold_slots:
            self._ring_s += seconds_of(self._writer.give_back)
        return outcome

    def _post(self, message: Message, payload: bytes | None = None) -> None:
        self._carrier.post(message, payload)

    def _expect(self, kind: type[Reply]) -> Reply:
        reply = self._carrier.receive()
        if isinstance(reply, Failed):
            raise UpdateRejected(f"{self._where()}: {reply.reason}")
        if not isinstance(reply, kind):
            raise ProtocolError(f"{self._where()}: {type(reply).__name__} instead of {kind.__name__}")
        return reply

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """Leave no half-open update behind: the worker's, this rank's, or the connection."""
        try:
            yield
        except UpdateRejected:
            self._writer.reset()
            self._finish()
            raise
        except (PeerLost, DeadlineExceeded) as error:
            self.close()
            raise type(error)(f"{self._where()}: {error}") from None
        except ProtocolError:
            self.close()
            raise
        except Exception as error:  # the source's own failure: the pair is in order
            self._end_early(f"{type(error).__name__}: {error}")
            raise

    def _where(self) -> str:
        return (
            f"rank {self._rank}, update {self._version}, bucket {self._bucket + 1} of "
            f"{len(self.plan.buckets)}, after {self._clock.elapsed_s():.3f} s"
        )

    def _report(self, outcome: dict[str, Any]) -> SyncReport:
        pause_s, resume_s = outcome["pause_s"], outcome["resume_s"]
        times = self._clock.phase_times_s(pause_s, self._apply_s)
        total_s, ring = sum(times.values()), None
        if not self._hold_slots:
            num_bytes = self._num_slots * align(self.plan.high_water_bytes)
            ring = RingCost(num_bytes, self._ring_s, outcome["ring_s"])
        return SyncReport(self._version, self.plan.payload_bytes, total_s, times, pause_s, resume_s, ring)


def _connect(engine: EngineClient, config: SyncConfig, plan: Plan, writer: SlotWriter) -> Carrier:
    slots = SlotOffer.of(config.transport, config.num_slots, writer, held=config.hold_slots)
    offer = Offer(plan, slots)
    carrier: Carrier
    if writer.one_rpc_per_bucket:
        carrier = RpcCarrier(engine, config.deadline_s, offer)
    else:
        with Listener() as listener:
            attaching = engine.submit("attach", listener.address)
            link = accept_worker(listener, attaching, config.deadline_s)
        carrier = ChannelCarrier(engine, config.deadline_s, link)
        carrier.offer(offer, writer.fds())
    try:
        _check_accepted(carrier.receive(), plan)
        writer.join(config.deadline_s, carrier.check_peer)
    except BaseException:
        carrier.close()
        raise
    return carrier


def _check_slots(config: SyncConfig, writer: SlotWriter) -> None:
    if not (config.hold_slots or writer.can_give_back):
        raise ConfigError(f"transport {config.transport!r} keeps its slots' memory: leave hold_slots on")


def _check_accepted(reply: Message, plan: Plan) -> None:
    if isinstance(reply, Accepted) and reply.plan_digest == plan.digest:
        return
    if isinstance(reply, Failed):
        raise UpdateRejected(reply.reason)
    raise ProtocolError(f"the worker answered the offer with {reply}")
