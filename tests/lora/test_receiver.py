"""The worker's state machine, in memory: whatever arrives, it serves one complete adapter."""

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lora.adapters_of import BASE, MODULES, adapter
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
from wsync_lab.digest import tensor_digest
from wsync_lab.lora.manifest import AdapterManifest, AdapterTargets, build_manifest
from wsync_lab.lora.receiver import AdapterReceiver
from wsync_lab.packing import Plan, build_plan, pack_piece
from wsync_lab.transports.base import SlotOffer
from wsync_lab.transports.cpu import PickleWriter
from wsync_lab.weights import TensorMeta

SLOT_BYTES, NUM_SLOTS = 512, 2
CAPACITY = build_plan([TensorMeta("slot", "uint8", (SLOT_BYTES,))], {}, SLOT_BYTES)
OFFER = Offer(CAPACITY, SlotOffer("cpu", NUM_SLOTS, "pageable"))
TARGETS = AdapterTargets(MODULES, 16, "float32", BASE)


class Host:
    """``AdapterHost`` that remembers; the engine's ``keep`` follows every commit."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.held: dict[int, tuple[AdapterManifest, dict[str, torch.Tensor]]] = {}
        self.served = 0
        self.fail_stage = False

    def faults(self, manifest: AdapterManifest) -> list[str]:
        return TARGETS.faults(manifest)

    def stage(self, manifest: AdapterManifest, tensors: dict[str, torch.Tensor]) -> None:
        self.held[manifest.update_id] = manifest, tensors
        if self.fail_stage:
            raise RuntimeError("planted fault in stage")

    def discard(self, update_id: int) -> None:
        self.held.pop(update_id, None)

    def keep(self, update_id: int) -> None:
        self.held = {held: made for held, made in self.held.items() if held == update_id}
        self.served = update_id


class Update:
    """What a trainer has to send for one update."""

    def __init__(self, update_id: int, seed: int, rank: int = 2) -> None:
        self.adapter = adapter(seed, rank=rank)
        self.manifest = build_manifest(update_id, BASE, self.adapter.config, self.adapter.tensors)
        self.plan: Plan = build_plan(self.manifest.tensors, {}, SLOT_BYTES)
        self.id = update_id

    def begin(self) -> AdapterBegin:
        return AdapterBegin(self.manifest, self.plan, self.manifest.digest)

    def bucket(self, index: int, *, flipped: bool = False) -> tuple[AdapterBucket, bytes]:
        writer = PickleWriter(self.plan, 1, torch.device("cpu"))
        tensors = list(self.adapter.tensors.values())
        for piece in self.plan.buckets[index].pieces:
            pack_piece(self.plan, piece, tensors[piece.tensor], writer.slot(0))
        writer.slot(0)[3] ^= int(flipped)
        payload = writer.publish(0, self.plan.buckets[index].num_bytes)
        return AdapterBucket(self.id, index, index % NUM_SLOTS), payload


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def receiver(host: Host) -> AdapterReceiver:
    receiver = AdapterReceiver(host)
    assert isinstance(receiver.handle(OFFER), Accepted)
    return receiver


def send(receiver: AdapterReceiver, update: Update) -> None:
    """Everything up to the seal."""
    assert receiver.handle(update.begin()) == Started(update.id)
    for index in range(len(update.plan.buckets)):
        assert isinstance(receiver.handle(*update.bucket(index)), SlotFree)
    assert isinstance(receiver.handle(Seal(update.id)), Prepared)


def reason(reply: Message) -> str:
    assert isinstance(reply, Failed)
    return reply.reason


def test_nothing_is_held_for_good_before_the_commit(receiver: AdapterReceiver, host: Host) -> None:
    send(receiver, update := Update(5, seed=1))
    assert (receiver.weight_version, receiver.outcome) == (0, None)
    assert receiver.handle(Commit(5)) == Done(5, committed=True)
    assert receiver.weight_version == 5
    _, tensors = host.held[5]
    assert {name: tensor_digest(tensor) for name, tensor in tensors.items()} == dict(
        zip(tensors, update.manifest.digests, strict=True)
    )


@pytest.mark.parametrize("rank", [1, 2, 16])
def test_buckets_may_come_in_any_order(receiver: AdapterReceiver, rank: int) -> None:
    """At rank 16 tensors are cut across buckets."""
    update = Update(5, seed=1, rank=rank)
    receiver.handle(update.begin())
    for index in reversed(range(len(update.plan.buckets))):
        assert isinstance(receiver.handle(*update.bucket(index)), SlotFree)
    assert isinstance(receiver.handle(Seal(5)), Prepared)


def test_what_comes_twice_is_answered_as_it_was_the_first_time(receiver: AdapterReceiver) -> None:
    update = Update(5, seed=1)
    messages: list[tuple[Any, ...]] = [(update.begin(),)]
    messages += [update.bucket(index) for index in range(len(update.plan.buckets))]
    messages += [(Seal(5),), (Commit(5),)]
    for message in messages:
        assert receiver.handle(*message) == receiver.handle(*message)
    receiver.handle(Update(6, seed=2).begin())
    assert receiver.handle(Abort(6, "twice")) == receiver.handle(Abort(6, "twice"))


def test_a_bucket_that_comes_again_from_a_slot_that_was_rewritten_is_not_read(
    receiver: AdapterReceiver,
) -> None:
    update = Update(5, seed=1)
    receiver.handle(update.begin())
    for index in range(len(update.plan.buckets)):
        receiver.handle(*update.bucket(index))
        assert isinstance(receiver.handle(*update.bucket(index, flipped=True)), SlotFree)
    assert isinstance(receiver.handle(Seal(5)), Prepared)


@pytest.mark.parametrize("message", [Seal(5), Commit(5), Update(5, seed=1).bucket(0)[0], Seal(99)])
def test_messages_of_an_update_that_ended_change_nothing(receiver: AdapterReceiver, message: Message) -> None:
    receiver.handle(Update(5, seed=1).begin())
    send(receiver, Update(6, seed=2))
    assert "is not under way" in reason(receiver.handle(message, b""))
    assert receiver.handle(Commit(6)) == Done(6, committed=True)


def test_a_newer_update_takes_the_place_of_one_whose_trainer_went_silent(
    receiver: AdapterReceiver, host: Host
) -> None:
    send(receiver, Update(5, seed=1))
    send(receiver, Update(8, seed=2))
    assert list(host.held) == [8]
    assert "is not above 8" in reason(receiver.handle(Update(7, seed=3).begin()))
    assert receiver.handle(Commit(8)) == Done(8, committed=True)
    assert "is committed: it cannot be aborted" in reason(receiver.handle(Abort(8, "too late")))
    assert receiver.weight_version == 8


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda u: AdapterBegin(u.manifest, u.plan, "0" * 64), "arrived changed"),
        (lambda u: AdapterBegin(u.manifest, Update(1, 1, 4).plan, u.manifest.digest), "not that of the"),
        (
            lambda u: AdapterBegin(u.manifest, build_plan(u.manifest.tensors, {}, 4096), u.manifest.digest),
            "slots of 512",
        ),
        (lambda u: Update(5, seed=1, rank=17).begin(), "max_lora_rank"),
    ],
)
def test_a_manifest_that_cannot_be_taken_is_refused_before_a_byte_moves(
    receiver: AdapterReceiver, host: Host, spoil: Any, text: str
) -> None:
    assert text in reason(receiver.handle(spoil(Update(5, seed=1))))
    assert receiver.outcome is not None
    assert not receiver.outcome.committed
    assert "is not under way" in reason(receiver.handle(Seal(5)))
    send(receiver, Update(6, seed=1))
    assert list(host.held) == [6]


def test_another_manifest_under_the_same_id_ends_the_update(receiver: AdapterReceiver) -> None:
    receiver.handle(Update(5, seed=1).begin())
    assert "another manifest" in reason(receiver.handle(Update(5, seed=2).begin()))
    assert "is not under way" in reason(receiver.handle(Seal(5)))


@pytest.mark.parametrize("flipped", [0, 1, 2])
def test_a_changed_byte_is_caught_before_the_commit(
    receiver: AdapterReceiver, host: Host, flipped: int
) -> None:
    update = Update(5, seed=1)
    receiver.handle(update.begin())
    for index in range(len(update.plan.buckets)):
        receiver.handle(*update.bucket(index, flipped=index == flipped))
    assert "arrived with other bytes" in reason(receiver.handle(Seal(5)))
    assert host.held == {}


def test_a_bucket_that_never_came_is_caught(receiver: AdapterReceiver) -> None:
    update = Update(5, seed=1)
    receiver.handle(update.begin())
    receiver.handle(*update.bucket(0))
    assert "buckets missing" in reason(receiver.handle(Seal(5)))


def test_an_engine_that_cannot_stage_serves_what_it_served(receiver: AdapterReceiver, host: Host) -> None:
    send(receiver, Update(5, seed=1))
    receiver.handle(Commit(5))
    host.keep(5)
    host.fail_stage = True
    update = Update(6, seed=2)
    receiver.handle(update.begin())
    for index in range(len(update.plan.buckets)):
        receiver.handle(*update.bucket(index))
    assert "planted fault" in reason(receiver.handle(Seal(6)))
    assert list(host.held) == [5]


class AnyOrder(RuleBasedStateMachine):
    """Two trainers, whose messages interleave, are lost, repeated and spoilt; workers restart.

    The model: an update is complete once each of its buckets came unspoilt while it was under
    way, and the engine serves the last update that was complete when it was committed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[Update] = []
        self.under_way: Update | None = None
        self.good: set[int] = set()
        self.spoilt = False
        self.prepared = False
        self.served: Update | None = None
        self.highest = 0

    @initialize()
    def start(self) -> None:
        self.host, self.engine_up = Host(), True
        self.receiver = AdapterReceiver(self.host)
        self.receiver.handle(OFFER)

    @rule(step=st.integers(1, 3), seed=st.integers(0, 9), rank=st.sampled_from([1, 2, 16, 17]))
    def begin(self, step: int, seed: int, rank: int) -> None:
        update = Update(self.highest + step, seed, rank)
        self.updates.append(update)
        self.highest = update.id
        reply = self.receiver.handle(update.begin())
        self._drop()
        if rank == 17:
            assert "max_lora_rank" in reason(reply)
        else:
            assert reply == Started(update.id)
            self.under_way = update

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def begin_again(self, data: st.DataObject) -> None:
        update = data.draw(st.sampled_from(self.updates))
        reply = self.receiver.handle(update.begin())
        assert isinstance(reply, Started if update is self.under_way else Failed)

    @precondition(lambda self: self.updates)
    @rule(data=st.data(), flipped=st.integers(0, 7))
    def bucket(self, data: st.DataObject, flipped: int) -> None:
        update = data.draw(st.sampled_from(self.updates[-2:]))
        index = data.draw(st.integers(0, len(update.plan.buckets) - 1))
        reply = self.receiver.handle(*update.bucket(index, flipped=flipped == 0))
        if update is not self.under_way:
            assert "is not under way" in reason(reply)
        elif index not in self.good:
            self.good.add(index)
            self.spoilt = self.spoilt or flipped == 0

    @precondition(lambda self: self.under_way)
    @rule()
    def every_other_bucket(self) -> None:
        assert self.under_way is not None
        for index in set(range(len(self.under_way.plan.buckets))) - self.good:
            assert isinstance(self.receiver.handle(*self.under_way.bucket(index)), SlotFree)
            self.good.add(index)

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        update = data.draw(st.sampled_from(self.updates[-2:]))
        reply = self.receiver.handle(Seal(update.id))
        if update is not self.under_way:
            assert "is not under way" in reason(reply)
        elif self._complete():
            assert isinstance(reply, Prepared)
            self.prepared = True
        else:
            assert isinstance(reply, Failed)
            self._drop()

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        update = data.draw(st.sampled_from(self.updates[-2:]))
        reply = self.receiver.handle(Commit(update.id))
        if update is self.under_way and self.prepared:
            assert reply == Done(update.id, committed=True)
            self.served = update
            self.host.keep(update.id)
            self._drop()
        elif update is self.under_way:
            assert "not prepared" in reason(reply)
            self._drop()
        elif update is self.served:
            assert reply == Done(update.id, committed=True)
        else:
            assert "is not under way" in reason(reply)

    @precondition(lambda self: self.updates)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        update = data.draw(st.sampled_from(self.updates[-2:]))
        reply = self.receiver.handle(Abort(update.id, "as a test asks"))
        if update is self.served:
            assert "cannot be aborted" in reason(reply)
        else:
            assert reply == Done(update.id, committed=False)
        if update is self.under_way:
            self._drop()

    @rule()
    def the_trainer_is_lost(self) -> None:
        self.receiver.close()
        self._drop()
        self.receiver.handle(OFFER)

    @rule()
    def the_engine_is_restarted(self) -> None:
        self.start()
        self._drop()
        self.served = None
        self.updates.clear()

    @invariant()
    def what_is_served_is_whole(self) -> None:
        assert self.host.served == (self.served.id if self.served else 0)
        if self.served is not None:
            manifest, tensors = self.host.held[self.served.id]
            assert manifest == self.served.manifest
            assert [tensor_digest(tensor) for tensor in tensors.values()] == list(manifest.digests)

    @invariant()
    def no_more_is_held_than_the_served_one_and_the_next(self) -> None:
        staged = {self.under_way.id} if self.under_way and self.prepared else set()
        assert set(self.host.held) == staged | ({self.served.id} if self.served else set())

    def _complete(self) -> bool:
        assert self.under_way is not None
        return len(self.good) == len(self.under_way.plan.buckets) and not self.spoilt

    def _drop(self) -> None:
        self.under_way, self.good, self.spoilt, self.prepared = None, set(), False, False


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
