"""A worker takes messages only in the order of the protocol, whoever sends them."""

import time
from collections.abc import Callable, Sequence

import pytest

from tests.core.module_engine import DictApplier
from wsync_lab.channel.messages import Begin, Commit, Failed, Hello, Message, Offer, Seal, SlotReady
from wsync_lab.packing import build_plan
from wsync_lab.protocol.receiver import Receiver
from wsync_lab.transports.base import SlotOffer
from wsync_lab.transports.cpu import PickleReader
from wsync_lab.weights import TensorMeta

PLAN = build_plan([TensorMeta("w", "uint8", (64,))], {}, 64)
BEGIN = Begin(1, PLAN.digest)


@pytest.fixture
def receiver() -> Receiver:
    receiver = Receiver(DictApplier())
    receiver.handle(Offer(PLAN, SlotOffer("cpu", 1, "pageable")))
    return receiver


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([Commit(1)], "no update was begun"),
        ([SlotReady(0, 0)], "no update was begun"),
        ([Seal(1)], "no update was begun"),
        ([BEGIN, Commit(1)], "not prepared"),
        ([BEGIN, Seal(1)], "sealed after 0 of 1 buckets"),
        ([BEGIN, Seal(2)], "sealed as version 2, begun as 1"),
        ([BEGIN, BEGIN], "end it before the next"),
        ([BEGIN, SlotReady(1, 0)], "is not in the plan"),
        ([BEGIN, SlotReady(0, 7)], "is not in the plan"),
        ([Begin(1, "another digest")], "another plan"),
        ([Hello(1, 2, 3)], "is not for an inference worker"),
    ],
)
def test_a_message_out_of_order_ends_the_update_and_publishes_nothing(
    receiver: Receiver, sent: Sequence[Message], reason: str
) -> None:
    *first, last = [receiver.handle(message) for message in sent]
    assert not any(isinstance(reply, Failed) for reply in first)
    assert isinstance(last, Failed)
    assert reason in last.reason
    assert receiver.weight_version == 0


def slow(seconds: float) -> Callable[[object], None]:
    return lambda _: time.sleep(seconds)


def test_taking_the_slots_and_giving_them_back_both_count(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PickleReader, "take", slow(0.02))
    monkeypatch.setattr(PickleReader, "give_back", slow(0.01))
    receiver.handle(Offer(PLAN, SlotOffer("cpu", 1, "pageable", held=False)))
    receiver.handle(BEGIN)
    receiver.fail("the trainer thought better of it")
    assert receiver.outcome is not None
    assert receiver.outcome.ring_s >= 0.03
