"""A plan gives every payload byte exactly one place, and the round trip keeps every bit."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import slot_sizes, state_dicts
from tests.core.weights_of import assert_same_bytes, weights_of
from wsync_lab.errors import ConfigError, PlanError
from wsync_lab.packing import (
    ALIGNMENT_BYTES,
    Bucket,
    Piece,
    Plan,
    build_plan,
    check_metadata,
    check_plan,
    pack_piece,
)
from wsync_lab.unpacking import Unpacker
from wsync_lab.weights import TensorMeta

CPU = torch.device("cpu")
POISON = 0xA5


def round_trip(plan: Plan, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pack and unpack through one slot that is poisoned before and after each bucket."""
    slot = torch.empty(plan.high_water_bytes, dtype=torch.uint8)
    unpacker = Unpacker(plan)
    received: dict[str, torch.Tensor] = {}
    for index, bucket in enumerate(plan.buckets):
        slot.fill_(POISON)
        for piece in bucket.pieces:
            pack_piece(plan, piece, tensors[plan.tensors[piece.tensor].name], slot)
        views = unpacker.accept(index, slot[: bucket.num_bytes])
        received |= {name: view.clone() for name, view in views}
    unpacker.check_complete()
    return received | dict(unpacker.empty_tensors(CPU))


@given(st.data())
def test_any_state_dict_survives_any_slot_size(data: st.DataObject) -> None:
    metadata = data.draw(state_dicts())
    plan = build_plan(metadata, {}, data.draw(slot_sizes(metadata)))
    check_plan(plan)
    weights = weights_of(metadata, seed=3)
    assert_same_bytes(round_trip(plan, weights), weights)


@given(st.data())
def test_every_byte_has_one_place_in_bounds_and_aligned(data: st.DataObject) -> None:
    metadata = data.draw(state_dicts())
    slot_bytes = data.draw(slot_sizes(metadata))
    plan = build_plan(metadata, {}, slot_bytes)
    places: list[set[int]] = [set() for _ in metadata]
    for bucket in plan.buckets:
        used: set[int] = set()
        for piece in bucket.pieces:
            where = set(range(piece.slot_offset, piece.slot_offset + piece.num_bytes))
            assert not where & used and max(where) < slot_bytes
            assert piece.slot_offset % ALIGNMENT_BYTES == 0
            used |= where
            here = set(range(piece.tensor_offset, piece.tensor_offset + piece.num_bytes))
            assert not here & places[piece.tensor]
            places[piece.tensor] |= here
    assert [len(place) for place in places] == [meta.num_bytes for meta in metadata]


@pytest.mark.parametrize("delta", [-1, 0, 1])
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("multiple", [1, 3])
def test_a_parameter_around_the_slot_size_is_cut_only_when_it_must_be(
    delta: int, position: int, multiple: int
) -> None:
    slot_bytes = 1024
    metadata = [TensorMeta("first", "uint8", (100,)), TensorMeta("last", "float32", (30,))]
    metadata.insert(position, TensorMeta("big", "uint8", (multiple * slot_bytes + delta,)))
    plan = build_plan(metadata, {}, slot_bytes)
    pieces = [p for b in plan.buckets for p in b.pieces if plan.tensors[p.tensor].name == "big"]
    fits = multiple * slot_bytes + delta <= slot_bytes
    assert len(pieces) == 1 if fits else len(pieces) >= multiple
    weights = weights_of(metadata, seed=8)
    assert_same_bytes(round_trip(plan, weights), weights)


def test_a_model_five_times_the_slot_needs_at_least_five_buckets_within_the_bound() -> None:
    metadata = [TensorMeta(f"layer.{i}", "bfloat16", (64, 8)) for i in range(20)]
    plan = build_plan(metadata, {}, 4096)
    assert len(plan.buckets) >= 5
    assert plan.high_water_bytes <= 4096


def test_nothing_to_send_is_a_plan() -> None:
    plan = build_plan([], {}, 10)
    check_plan(plan)
    assert plan.buckets == () and plan.payload_bytes == 0 and round_trip(plan, {}) == {}


@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 4), (), (1,)])
def test_empty_and_scalar_shapes_survive(shape: tuple[int, ...]) -> None:
    metadata = [TensorMeta("odd", "float8_e4m3fn", (3,)), TensorMeta("it", "float32", shape)]
    weights = weights_of(metadata, seed=1)
    assert_same_bytes(round_trip(build_plan(metadata, {}, 512), weights), weights)


@pytest.mark.parametrize("slot_bytes", [64, 4096])
def test_strided_tensors_are_sent_by_value(slot_bytes: int) -> None:
    base = torch.arange(96, dtype=torch.float32).reshape(8, 12)
    weights = {"t": base.t(), "step": base[:, ::2], "expanded": base[:1].expand(4, 12)}
    metadata = [TensorMeta.of(name, tensor) for name, tensor in weights.items()]
    assert_same_bytes(round_trip(build_plan(metadata, {}, slot_bytes), weights), weights)


def test_a_tensor_that_needs_grad_is_sent_detached() -> None:
    leaf = torch.randn(5, generator=torch.Generator().manual_seed(2)).requires_grad_()
    plan = build_plan([TensorMeta.of("w", leaf)], {}, 64)
    received = round_trip(plan, {"w": leaf})
    assert not received["w"].requires_grad
    assert_same_bytes(received, {"w": leaf})


def test_one_name_twice_is_refused() -> None:
    meta = TensorMeta("w", "float32", (2,))
    with pytest.raises(PlanError, match="sent twice: w"):
        build_plan([meta, meta], {}, 64)


def test_an_alias_of_something_unsent_is_refused() -> None:
    with pytest.raises(PlanError, match="alias"):
        build_plan([TensorMeta("w", "float32", (2,))], {"head": "embed"}, 64)


def test_a_slot_without_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="slot_bytes is 0"):
        build_plan([], {}, 0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TensorMeta("w", "float32", (4,)), r"w float32\[2, 2\] became w float32\[4\]"),
        (TensorMeta("w", "bfloat16", (2, 2)), "became w bfloat16"),
        (TensorMeta("v", "float32", (2, 2)), "v is new; w is gone"),
    ],
)
def test_a_changed_model_is_noticed(other: TensorMeta, message: str) -> None:
    plan = build_plan([TensorMeta("w", "float32", (2, 2))], {}, 64)
    with pytest.raises(PlanError, match=message):
        check_metadata(plan, [other])


def test_packing_another_dtype_writes_nothing() -> None:
    plan = build_plan([TensorMeta("w", "bfloat16", (4,))], {}, 64)
    slot = torch.full((64,), POISON, dtype=torch.uint8)
    with pytest.raises(PlanError, match="not the planned"):
        pack_piece(plan, plan.buckets[0].pieces[0], torch.ones(4), slot)
    assert (slot == POISON).all()


def test_digests_tell_layouts_apart() -> None:
    one = [TensorMeta("a", "float32", (4,)), TensorMeta("b", "float32", (4,))]
    digests = {
        build_plan(one, {}, 512).digest,
        build_plan(one[::-1], {}, 512).digest,
        build_plan(one, {}, 256).digest,
        build_plan(one, {"c": "a"}, 512).digest,
        build_plan([TensorMeta("a", "int32", (4,)), one[1]], {}, 512).digest,
    }
    assert len(digests) == 5
    assert build_plan(one, {}, 512).digest == build_plan(list(one), {}, 512).digest


W, V = TensorMeta("w", "uint8", (8,)), TensorMeta("v", "uint8", (8,))
BROKEN_BUCKETS = {
    "gap": (Bucket(4, (Piece(0, 0, 0, 4),)), "w: the plan places 4 of 8 bytes"),
    "twice": (Bucket(264, (Piece(0, 0, 0, 8), Piece(0, 0, 256, 8))), "w: pieces overlap, or are out of"),
    "overlap": (Bucket(8, (Piece(0, 0, 0, 8), Piece(1, 0, 0, 8))), "v: a piece overlaps"),
    "without bytes": (Bucket(0, (Piece(0, 0, 0, 0),)), "w: a piece overlaps"),
    "unaligned": (Bucket(12, (Piece(0, 0, 4, 8),)), "w: a piece overlaps or is not aligned"),
    "outside": (Bucket(2056, (Piece(0, 0, 2048, 8),)), "ends at 2056, slot 1024"),
    "other tensor": (Bucket(8, (Piece(2, 0, 0, 8),)), "a piece of tensor 2 of 2"),
    "size": (Bucket(9, (Piece(0, 0, 0, 8),)), "a bucket of 9 bytes ends at 8"),
}


@pytest.mark.parametrize("fault", BROKEN_BUCKETS)
def test_a_plan_from_a_peer_is_checked(fault: str) -> None:
    bucket, reason = BROKEN_BUCKETS[fault]
    with pytest.raises(PlanError, match=reason):
        check_plan(Plan((W, V), {}, 1024, (bucket,)))


def test_a_plan_survives_the_wire() -> None:
    plan = build_plan([TensorMeta("w.ü", "float32", (3,))], {"x": "w.ü"}, 8)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)
    assert again == plan and again.digest == plan.digest


@pytest.mark.parametrize("bucket", [1, -1])
def test_buckets_arrive_in_order_or_not_at_all(bucket: int) -> None:
    plan = build_plan([TensorMeta("w", "uint8", (8,))], {}, 4)
    with pytest.raises(PlanError, match="bucket 0 is next"):
        Unpacker(plan).accept(bucket, torch.zeros(4, dtype=torch.uint8))
