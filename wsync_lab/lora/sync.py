"""The trainer's half of an adapter update."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from wsync_lab import transports
from wsync_lab.channel.messages import Offer
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
from wsync_lab.lora.config import AdapterConfig
from wsync_lab.lora.line import Line
from wsync_lab.lora.manifest import build_manifest, next_update_id
from wsync_lab.packing import Plan, build_plan
from wsync_lab.protocol.carrier import ChannelCarrier, EngineClient, RpcCarrier, accept_worker
from wsync_lab.protocol.host_threads import half_of_the_cores
from wsync_lab.protocol.phases import SyncClock, SyncReport
from wsync_lab.transports.base import SlotOffer, SlotWriter
from wsync_lab.weights import TensorMeta

_PREFIX = "adapter_"  # of the engine's methods


@dataclass(frozen=True)
class Adapter:
    """What the trainer has now.

    Attributes:
        tensors: by PEFT's names, whole.
        base_digest: see ``base.base_digest_of``.
        excluded: see ``manifest.AdapterManifest``.
    """

    config: AdapterConfig
    tensors: Mapping[str, torch.Tensor]
    base_digest: str
    excluded: Mapping[str, str] = field(default_factory=dict)


class AdapterSync:
    """One trainer rank's connection, for adapters, to every worker of one inference engine.

    As ``protocol.sync.WeightSync``: ``prepare`` moves and stages the adapter on all workers,
    ``commit`` serves it, on all or none. The slots stay as they are while ranks and targets
    change from update to update.
    """

    def __init__(
        self, source: Callable[[], Adapter], lines: Sequence[Line], config: SyncConfig, rank: int
    ) -> None:
        """Use ``connect``."""
        self.lines = lines
        self._source, self._config, self._rank = source, config, rank
        self._clock, self._apply_s = SyncClock(), 0.0
        self._update_id = self._payload_bytes = 0
        self.closed = False

    @classmethod
    def connect(
        cls,
        source: Callable[[], Adapter],
        engine: EngineClient,
        config: SyncConfig,
        *,
        num_workers: int = 1,
        rank: int = 0,
        device: torch.device | None = None,
    ) -> "AdapterSync":
        """Map the staging slots into the workers.

        Args:
            source: called once an update, for what the trainer has then.
            num_workers: of the engine, its tensor-parallel size: each gets the whole adapter.
            device: where the adapter's tensors are.

        Raises:
            TransportUnavailable: the transport cannot run here.
            ConfigError: slots of adapters are small, and kept.
        """
        if not config.hold_slots:
            raise ConfigError("hold_slots is off: the slots of adapters are kept")
        where = device or torch.device("cpu")
        lines = _connect(engine, config, num_workers, where)
        return cls(source, lines, config, rank)

    @property
    def slot_memory(self) -> str:
        """What carries the bytes, as records name it."""
        return self.lines[0].writer.slot_memory

    @property
    def collective(self) -> str | None:
        return self.lines[0].writer.collective

    def update(self, update_id: int | None = None) -> SyncReport:
        """``prepare`` and ``commit`` for a job of one engine, under a new id unless one is given."""
        self.prepare(next_update_id(self._update_id) if update_id is None else update_id)
        return self.commit()

    def prepare(self, update_id: int) -> None:
        """Send the adapter; return when every worker has staged it beside the one it serves.

        Raises:
            UpdateRejected: a worker refused or failed, with all faults of the manifest; every
                worker serves what it served.
            PeerLost, DeadlineExceeded: a worker is lost; this connection is closed.
        """
        if self.closed:
            raise PeerLost(f"rank {self._rank}: this connection is closed: connect again")
        self._clock, self._update_id, self._apply_s = SyncClock(), update_id, 0.0
        with self._clock.phase("gather"):
            adapter = self._source()
        with self._clock.phase("pack"):
            manifest = build_manifest(
                update_id, adapter.base_digest, adapter.config, adapter.tensors, adapter.excluded
            )
        self._payload_bytes = manifest.payload_bytes
        plan = build_plan(manifest.tensors, {}, self._config.slot_bytes)
        with self._ending_on_error(), half_of_the_cores():
            self.lines[0].carrier.start()  # one RPC lets every worker in
            for line in self.lines:  # every worker is waiting for its own
                line.begin(manifest, plan)
            for line in self.lines:
                line.started()
            for line in self.lines:
                line.stream(plan, adapter.tensors, self._clock)
            self._apply_s = max([line.seal() for line in self.lines])
            self._clock.prepared()

    def commit(self) -> SyncReport:
        """Serve the prepared adapter, and return when every request that starts meets it.

        Raises:
            UpdateRejected, PeerLost, DeadlineExceeded: as in ``prepare``.
        """
        with self._ending_on_error():
            for line in self.lines:
                line.commit()
            self._clock.committed()
            outcome = self.lines[0].carrier.finish()
        if not outcome["committed"]:
            raise UpdateRejected(outcome["reason"])
        return self._report(outcome)

    def abort(self, reason: str) -> None:
        """Give up an update that this rank prepared, because another rank failed."""
        try:
            for line in self.lines:
                line.abort(self._update_id, reason)
            self.lines[0].carrier.finish()
        except WsyncError:
            self.close()
            raise

    def close(self) -> None:
        """Free the slots and the channels. The engine serves what it committed."""
        self.closed = True
        for line in self.lines:
            line.close()

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """Leave no half-open update behind: no worker's, or no connection."""
        try:
            yield
        except (PeerLost, DeadlineExceeded, ProtocolError) as error:
            self.close()
            raise type(error)(f"{self._where()}: {error}") from None
        except UpdateRejected as error:
            self.abort(str(error))
            raise UpdateRejected(f"{self._where()}: {error}") from None
        except Exception as error:
            self.abort(f"{type(error).__name__}: {error}")
            raise

    def _where(self) -> str:
        return f"rank {self._rank}, adapter update {self._update_id}, after {self._clock.elapsed_s():.3f} s"

    def _report(self, outcome: dict[str, Any]) -> SyncReport:
        pause_s, resume_s = outcome["pause_s"], outcome["resume_s"]
        times = self._clock.phase_times_s(pause_s, self._apply_s)
        return SyncReport(self._update_id, self._payload_bytes, sum(times.values()), times, pause_s, resume_s)


def _connect(engine: EngineClient, config: SyncConfig, num_workers: int, device: torch.device) -> list[Line]:
    capacity = build_plan([TensorMeta("slot", "uint8", (config.slot_bytes,))], {}, config.slot_bytes)
    with ExitStack() as undo:
        writer = _open(config, capacity, device, undo)
        offer = _offer(config, capacity, writer)
        if writer.one_rpc_per_bucket:
            lines = [Line(RpcCarrier(engine, config.deadline_s, offer, _PREFIX), writer, config)]
        else:
            writers = [writer, *(_open(config, capacity, device, undo) for _ in range(num_workers - 1))]
            lines = _meet(engine, config, capacity, writers, undo)
        for line in lines:
            line.accepted(capacity)
        undo.pop_all()
    return lines


def _open(config: SyncConfig, capacity: Plan, device: torch.device, undo: ExitStack) -> SlotWriter:
    writer = transports.open_writer(config.transport, capacity, config.num_slots, device)
    undo.callback(writer.close)
    return writer


def _offer(config: SyncConfig, capacity: Plan, writer: SlotWriter) -> Offer:
    return Offer(capacity, SlotOffer.of(config.transport, config.num_slots, writer))


def _meet(
    engine: EngineClient, config: SyncConfig, capacity: Plan, writers: Sequence[SlotWriter], undo: ExitStack
) -> list[Line]:
    """A channel to each worker: worker i of the engine connects to the i-th address."""
    with ExitStack() as listening:
        listeners = [listening.enter_context(Listener()) for _ in writers]
        attaching = engine.submit(f"{_PREFIX}attach", [listener.address for listener in listeners])
        links = []
        for listener in listeners:
            links.append(accept_worker(listener, attaching, config.deadline_s))
            undo.callback(links[-1].close)
    carriers = [ChannelCarrier(engine, config.deadline_s, link, _PREFIX) for link in links]
    for carrier, writer in zip(carriers, writers, strict=True):
        carrier.offer(_offer(config, capacity, writer), writer.fds())
    return [Line(carrier, writer, config) for carrier, writer in zip(carriers, writers, strict=True)]
