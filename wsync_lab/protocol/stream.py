"""Packs a stream of full tensors, gathered one at a time, into one bucket after another."""

from collections.abc import Iterator

import torch

from wsync_lab.digest import tensor_digest
from wsync_lab.errors import PlanError
from wsync_lab.packing import Bucket, Plan, pack_piece
from wsync_lab.protocol.phases import SyncClock


class StreamPacker:
    """Holds one gathered tensor at a time; the plan and the stream are in the same order."""

    def __init__(
        self, plan: Plan, tensors: Iterator[tuple[str, torch.Tensor]], clock: SyncClock, verify: bool
    ) -> None:
        self._plan, self._tensors, self._clock, self._verify = plan, tensors, clock, verify
        self.digests: list[int] = []
        self._index = -1
        self._tensor = torch.empty(0)

    def fill(self, bucket: Bucket, slot: torch.Tensor) -> None:
        """Copy every piece of ``bucket`` into ``slot`` (1-D uint8).

        Raises:
            PlanError: the stream's names, dtypes or shapes differ from the plan.
        """
        for piece in bucket.pieces:
            self._advance(piece.tensor)
            with self._clock.phase("pack"):
                pack_piece(self._plan, piece, self._tensor, slot)

    def finish(self) -> None:
        """Exhaust the stream; tensors without elements are all that may be left."""
        self._advance(len(self._plan.tensors) - 1)
        if next(self._tensors, None) is not None:
            raise PlanError("the weights hold more tensors than planned: connect again")

    def _advance(self, index: int) -> None:
        while self._index < index:
            with self._clock.phase("gather"):
                name, self._tensor = next(self._tensors, ("nothing", self._tensor))
            self._index += 1
            planned = self._plan.tensors[self._index].name
            if name != planned:
                raise PlanError(f"the weights yielded {name} where {planned} was planned")
            if self._verify:
                with self._clock.phase("pack"):
                    self.digests.append(tensor_digest(self._tensor))
