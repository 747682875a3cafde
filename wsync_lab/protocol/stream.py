"""Packs a stream of full tensors, gathered one at a time, into one bucket after another."""

from collections.abc import Iterator, Sequence

import torch

from wsync_lab.copies import CopyBatch
from wsync_lab.digest import tensor_digests
from wsync_lab.errors import PlanError
from wsync_lab.packing import Bucket, Plan, pack_piece, piece_views
from wsync_lab.protocol.phases import SyncClock


class PackedBuckets:
    """On a GPU: the copies of each bucket, kept for as long as its tensors stay where they are."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kept: dict[int, tuple[object, CopyBatch]] = {}

    def pack(self, index: int, sources: Sequence[torch.Tensor], slot: torch.Tensor) -> None:
        """Queue the copies of ``sources``, one a piece of bucket ``index``, into ``slot``."""
        places = [(source.data_ptr(), source.stride()) for source in sources], slot.data_ptr()
        key, batch = self._kept.get(index, (None, None))
        if batch is None or key != places:
            pieces = self._plan.buckets[index].pieces
            pairs = zip(pieces, sources, strict=True)
            batch = CopyBatch([piece_views(self._plan, piece, source, slot) for piece, source in pairs])
            self._kept[index] = places, batch
        batch.run()


class StreamPacker:
    """The plan and the stream are in the same order.

    On a host it holds one gathered tensor at a time, on a GPU those of one bucket.
    """

    def __init__(
        self,
        plan: Plan,
        tensors: Iterator[tuple[str, torch.Tensor]],
        packed: PackedBuckets,
        clock: SyncClock,
        verify: bool,
    ) -> None:
        self._plan, self._tensors, self._clock, self._verify = plan, tensors, clock, verify
        self._packed = packed
        self.digests: list[int] = []
        self._fresh: list[torch.Tensor] = []
        self._index = -1
        self._tensor = torch.empty(0)

    def fill(self, index: int, slot: torch.Tensor) -> None:
        """Copy every piece of bucket ``index`` into ``slot`` (1-D uint8).

        Raises:
            PlanError: the stream's names, dtypes or shapes differ from the plan.
        """
        bucket = self._plan.buckets[index]
        if slot.is_cuda:
            with self._clock.phase("gather"):
                sources = [self._advance(piece.tensor) for piece in bucket.pieces]
                self._digest()
            with self._clock.phase("pack"):
                self._packed.pack(index, sources, slot)
        else:
            self._pack_each(bucket, slot)

    def finish(self) -> None:
        """Exhaust the stream; tensors without elements are all that may be left."""
        self._advance(len(self._plan.tensors) - 1)
        self._digest()
        if next(self._tensors, None) is not None:
            raise PlanError("the weights hold more tensors than planned: connect again")

    def _pack_each(self, bucket: Bucket, slot: torch.Tensor) -> None:
        for piece in bucket.pieces:
            with self._clock.phase("gather"):
                tensor = self._advance(piece.tensor)
                self._digest()
            with self._clock.phase("pack"):
                pack_piece(self._plan, piece, tensor, slot)

    def _advance(self, index: int) -> torch.Tensor:
        """The tensor that the plan has at ``index``; earlier ones are passed over."""
        while self._index < index:
            name, self._tensor = next(self._tensors, ("nothing", self._tensor))
            self._index += 1
            planned = self._plan.tensors[self._index].name
            if name != planned:
                raise PlanError(f"the weights yielded {name} where {planned} was planned")
            self._fresh.append(self._tensor)
        return self._tensor

    def _digest(self) -> None:
        """Of the tensors that came since the last call."""
        if self._verify:
            self.digests.extend(tensor_digests(self._fresh))
        self._fresh.clear()
