"""An adapter that is arriving: memory of its own, filled in any order, served by nobody."""

import torch

from wsync_lab.digest import tensor_digests
from wsync_lab.errors import PlanError, UpdateRejected
from wsync_lab.lora.manifest import AdapterManifest
from wsync_lab.packing import Plan, as_bytes


class ShadowAdapter:
    """Assembles the tensors of ``manifest`` from the buckets of ``plan`` on ``device``."""

    def __init__(self, manifest: AdapterManifest, plan: Plan, device: torch.device) -> None:
        self._manifest, self._plan = manifest, plan
        self._arrived: set[int] = set()
        self._tensors = [
            torch.empty(meta.shape, dtype=meta.torch_dtype, device=device) for meta in plan.tensors
        ]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """By PEFT's names; uninitialised memory where buckets are missing."""
        return {meta.name: tensor for meta, tensor in zip(self._plan.tensors, self._tensors, strict=True)}

    def has(self, bucket: int) -> bool:
        return bucket in self._arrived

    def num_bytes(self, bucket: int) -> int:
        """Raises ``PlanError`` for a bucket that is not planned."""
        if bucket >= len(self._plan.buckets):
            raise PlanError(f"bucket {bucket} is not in the plan of {len(self._plan.buckets)}")
        return self._plan.buckets[bucket].num_bytes

    def accept(self, bucket: int, payload: torch.Tensor) -> None:
        """Copy the pieces of ``bucket`` out of ``payload`` (1-D uint8)."""
        if payload.numel() != self.num_bytes(bucket):
            raise PlanError(f"bucket {bucket} has {payload.numel()} bytes, not {self.num_bytes(bucket)}")
        for piece in self._plan.buckets[bucket].pieces:
            target = as_bytes(self._tensors[piece.tensor])
            source = payload[piece.slot_offset : piece.slot_offset + piece.num_bytes]
            target[piece.tensor_offset : piece.tensor_offset + piece.num_bytes].copy_(source)
        self._arrived.add(bucket)

    def check(self) -> None:
        """Raise ``UpdateRejected`` unless every byte arrived as the manifest says."""
        missing = len(self._plan.buckets) - len(self._arrived)
        if missing:
            raise UpdateRejected(f"sealed with {missing} of {len(self._plan.buckets)} buckets missing")
        digests = tensor_digests(self._tensors)
        sent = zip(self._manifest.tensors, self._manifest.digests, digests, strict=True)
        wrong = [meta.name for meta, there, here in sent if there != here]
        if wrong:
            raise UpdateRejected(f"{len(wrong)} tensors arrived with other bytes, first {wrong[0]}")
