"""The static plan: where every byte of an update lies, agreed once and replayed at each step.

A plan cuts the payload into buckets of at most one staging slot. Every piece starts at an
offset that any dtype may be viewed at; a tensor larger than a slot is cut into several pieces.
Sizes and offsets are never sent with an update: both ends hold the plan and compare its digest.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
import torch

from wsync_lab.errors import ConfigError, PlanError
from wsync_lab.weights import TensorMeta

ALIGNMENT_BYTES = 256


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """``num_bytes`` bytes of one tensor inside one bucket."""

    tensor: int  # index into Plan.tensors
    tensor_offset: int
    slot_offset: int
    num_bytes: int


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """What one staging slot holds at a time; ``num_bytes`` ends with its last piece."""

    num_bytes: int
    pieces: tuple[Piece, ...]


class Plan(msgspec.Struct, frozen=True, dict=True):
    """The layout of one update: tensors in sending order, aliases, buckets."""

    tensors: tuple[TensorMeta, ...]
    aliases: dict[str, str]
    slot_bytes: int
    buckets: tuple[Bucket, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical encoding: equal digests mean equal layouts."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @cached_property
    def payload_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)

    @cached_property
    def empty_tensors(self) -> tuple[TensorMeta, ...]:
        """Tensors without elements: no bucket has a byte of them."""
        return tuple(tensor for tensor in self.tensors if tensor.num_bytes == 0)

    @cached_property
    def high_water_bytes(self) -> int:
        """Bytes of the fullest bucket, padding included: what a slot must hold."""
        return max((bucket.num_bytes for bucket in self.buckets), default=0)


def build_plan(metadata: Iterable[TensorMeta], aliases: Mapping[str, str], slot_bytes: int) -> Plan:
    """Lay ``metadata`` out in buckets of at most ``slot_bytes``, in order.

    Raises:
        PlanError: a name occurs twice, or an alias points to a name that is not sent.
        ConfigError: ``slot_bytes`` is not positive.
    """
    if slot_bytes <= 0:
        raise ConfigError(f"slot_bytes is {slot_bytes}: give a number above 0")
    tensors = tuple(metadata)
    _check_names(tensors, aliases)
    packer = _Packer(slot_bytes)
    for index, tensor in enumerate(tensors):
        packer.add(index, tensor.num_bytes)
    return Plan(tensors, dict(sorted(aliases.items())), slot_bytes, packer.finish())


def check_plan(plan: Plan) -> None:
    """Refuse a plan, received from a peer, in which a byte has no place or two.

    Raises:
        PlanError: names clash, a piece leaves its slot or tensor, pieces overlap or leave a gap.
    """
    _check_names(plan.tensors, plan.aliases)
    filled = [0] * len(plan.tensors)
    for bucket in plan.buckets:
        _check_bucket(bucket, plan, filled)
    for tensor, num_bytes in zip(plan.tensors, filled, strict=True):
        if num_bytes != tensor.num_bytes:
            raise PlanError(f"{tensor.name}: the plan places {num_bytes} of {tensor.num_bytes} bytes")


def check_metadata(plan: Plan, metadata: Sequence[TensorMeta]) -> None:
    """Refuse weights whose names, dtypes or shapes changed since ``plan`` was agreed.

    Raises:
        PlanError: names every difference; reconnect to agree on a new plan.
    """
    if tuple(metadata) == plan.tensors:
        return
    planned = {tensor.name: tensor for tensor in plan.tensors}
    current = {tensor.name: tensor for tensor in metadata}
    faults = [f"{name} is gone" for name in planned if name not in current]
    faults += [f"{name} is new" for name in current if name not in planned]
    for name in planned.keys() & current.keys():
        if planned[name] != current[name]:
            faults.append(f"{describe(planned[name])} became {describe(current[name])}")
    if faults:
        raise PlanError(f"the model changed since init ({'; '.join(sorted(faults))}): connect again")


def pack_piece(plan: Plan, piece: Piece, tensor: torch.Tensor, slot: torch.Tensor) -> None:
    """Copy one piece of ``tensor`` (any strides) into ``slot`` (1-D uint8), without blocking.

    Raises:
        PlanError: dtype or shape differ from the plan; nothing is written.
    """
    target, source = piece_views(plan, piece, tensor, slot)
    target.copy_(source, non_blocking=True)


def piece_views(
    plan: Plan, piece: Piece, tensor: torch.Tensor, slot: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(target in ``slot``, source in ``tensor``) of the copy that ``pack_piece`` makes.

    Raises:
        PlanError: as ``pack_piece``.
    """
    meta = plan.tensors[piece.tensor]
    if TensorMeta.of(meta.name, tensor) != meta:
        raise PlanError(f"{describe(TensorMeta.of(meta.name, tensor))} is not the planned {describe(meta)}")
    target = slot[piece.slot_offset : piece.slot_offset + piece.num_bytes]
    if piece.num_bytes == meta.num_bytes:
        return target.view(tensor.dtype).view(tensor.shape), tensor
    return target, as_bytes(tensor)[piece.tensor_offset : piece.tensor_offset + piece.num_bytes]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The stored bytes as 1-D uint8: a view when ``tensor`` is contiguous, else a copy."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def describe(meta: TensorMeta) -> str:
    """``name dtype[shape]``, for error texts."""
    return f"{meta.name} {meta.dtype}{list(meta.shape)}"


def align(num_bytes: int) -> int:
    """``num_bytes`` rounded up to the alignment of pieces."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class _Packer:
    """Fills buckets in order; a tensor is cut only when it is larger than a slot."""

    def __init__(self, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._buckets: list[Bucket] = []
        self._pieces: list[Piece] = []
        self._used = 0

    def add(self, tensor: int, num_bytes: int) -> None:
        if align(self._used) + min(num_bytes, self._slot_bytes) > self._slot_bytes:
            self._close()
        offset = 0
        while offset < num_bytes:
            offset += self._place(tensor, offset, num_bytes - offset)

    def _place(self, tensor: int, tensor_offset: int, remaining: int) -> int:
        if align(self._used) >= self._slot_bytes:
            self._close()
        start = align(self._used)
        num_bytes = min(remaining, self._slot_bytes - start)
        self._pieces.append(Piece(tensor, tensor_offset, start, num_bytes))
        self._used = start + num_bytes
        return num_bytes

    def finish(self) -> tuple[Bucket, ...]:
        self._close()
        return tuple(self._buckets)

    def _close(self) -> None:
        if self._pieces:
            self._buckets.append(Bucket(self._used, tuple(self._pieces)))
        self._pieces, self._used = [], 0


def _check_names(tensors: Sequence[TensorMeta], aliases: Mapping[str, str]) -> None:
    counts = Counter(tensor.name for tensor in tensors)
    negative = [describe(tensor) for tensor in tensors if any(size < 0 for size in tensor.shape)]
    if negative:
        raise PlanError(f"no tensor has such a shape: {', '.join(negative)}")
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise PlanError(f"sent twice: {', '.join(twice)}; give each tensor one name")
    for alias, name in aliases.items():
        if alias in counts or name not in counts:
            raise PlanError(f"{alias} is an alias of {name}: send {name}, and not {alias}")


def _check_bucket(bucket: Bucket, plan: Plan, filled: list[int]) -> None:
    end = 0
    for piece in bucket.pieces:
        if not 0 <= piece.tensor < len(plan.tensors):
            raise PlanError(f"a piece of tensor {piece.tensor} of {len(plan.tensors)}")
        if piece.slot_offset < end or piece.slot_offset % ALIGNMENT_BYTES or piece.num_bytes <= 0:
            raise PlanError(f"{plan.tensors[piece.tensor].name}: a piece overlaps or is not aligned")
        if piece.tensor_offset != filled[piece.tensor]:
            raise PlanError(f"{plan.tensors[piece.tensor].name}: pieces overlap, or are out of order")
        filled[piece.tensor] += piece.num_bytes
        end = piece.slot_offset + piece.num_bytes
    if end != bucket.num_bytes or end > plan.slot_bytes:
        raise PlanError(f"a bucket of {bucket.num_bytes} bytes ends at {end}, slot {plan.slot_bytes}")
