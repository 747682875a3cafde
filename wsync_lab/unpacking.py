"""From the bytes of buckets back to whole tensors, as views wherever that is possible."""

import torch

from wsync_lab.errors import PlanError
from wsync_lab.packing import Piece, Plan

NamedTensors = list[tuple[str, torch.Tensor]]


class Unpacker:
    """Turns the buckets of one update, in order, into named tensors.

    Tensors that lie in one bucket are views into it, valid until the slot is released.
    Tensors cut across buckets are assembled in memory of their own.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._next_bucket = 0
        self._partial: dict[int, torch.Tensor] = {}

    def empty_tensors(self, device: torch.device) -> NamedTensors:
        """Tensors without elements: they have no bytes in any bucket."""
        empty = self._plan.empty_tensors
        return [(m.name, torch.empty(m.shape, dtype=m.torch_dtype, device=device)) for m in empty]

    def accept(self, bucket: int, payload: torch.Tensor) -> NamedTensors:
        """The tensors completed by ``payload`` (1-D uint8), the bytes of bucket ``bucket``.

        Raises:
            PlanError: the bucket is not the next one, or its size is not the planned one.
        """
        if bucket != self._next_bucket or bucket >= len(self._plan.buckets):
            raise PlanError(f"bucket {bucket} arrived, bucket {self._next_bucket} is next")
        planned = self._plan.buckets[bucket]
        if payload.dtype != torch.uint8 or payload.shape != (planned.num_bytes,):
            raise PlanError(f"bucket {bucket} has {payload.numel()} bytes, planned {planned.num_bytes}")
        self._next_bucket += 1
        return [named for piece in planned.pieces for named in self._place(piece, payload)]

    def skip(self, bucket: int) -> None:
        """Count ``bucket`` as arrived: its bytes were taken without being unpacked."""
        if bucket != self._next_bucket:
            raise PlanError(f"bucket {bucket} arrived, bucket {self._next_bucket} is next")
        self._next_bucket += 1

    def check_complete(self) -> None:
        """Raise ``PlanError`` unless every bucket has arrived."""
        if self._next_bucket != len(self._plan.buckets):
            raise PlanError(f"sealed after {self._next_bucket} of {len(self._plan.buckets)} buckets")

    def _place(self, piece: Piece, payload: torch.Tensor) -> NamedTensors:
        meta = self._plan.tensors[piece.tensor]
        data = payload[piece.slot_offset : piece.slot_offset + piece.num_bytes]
        if piece.num_bytes < meta.num_bytes:
            whole = self._assemble(piece, data, meta.num_bytes)
            if whole is None:
                return []
            data = whole
        return [(meta.name, data.view(meta.torch_dtype).view(meta.shape))]

    def _assemble(self, piece: Piece, data: torch.Tensor, num_bytes: int) -> torch.Tensor | None:
        buffer = self._partial.get(piece.tensor)
        if buffer is None:
            buffer = torch.empty(num_bytes, dtype=torch.uint8, device=data.device)
            self._partial[piece.tensor] = buffer
        end = piece.tensor_offset + piece.num_bytes
        buffer[piece.tensor_offset : end].copy_(data)
        return self._partial.pop(piece.tensor) if end == num_bytes else None
