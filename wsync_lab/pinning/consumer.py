"""The engine's end: opens flat tensors, looks at them, and keeps references to some."""

import gc
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from wsync_lab.digest import tensor_digest
from wsync_lab.pinning.memory import shared_bytes
from wsync_lab.weights import TensorMeta

Seen = tuple[list[int], int, int]  # digests of all tensors, NaNs among them, shared bytes


def consume(requests: Any, replies: Any, hold: int | None, device_type: str) -> None:
    """Answer every bucket with what was seen in it; None ends it.

    Args:
        hold: references to the last so many buckets are kept; None keeps all, 0 none.
    """
    torch.set_num_threads(1)
    device = torch.device(device_type)
    held: deque[list[torch.Tensor]] = deque(maxlen=hold)
    while (bucket := requests.get()) is not None:
        flats, metas = bucket
        tensors = [each for flat, group in zip(flats, metas, strict=True) for each in unflatten(flat, group)]
        digests = [tensor_digest(tensor) for tensor in tensors]
        nans = sum(int(tensor.float().isnan().sum()) for tensor in tensors if tensor.is_floating_point())
        held.append(flats)
        del bucket, flats, tensors
        _collect(device)
        replies.put((digests, nans, shared_bytes(device)))


def unflatten(flat: torch.Tensor, metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
    """Views of ``flat`` (1-D uint8): its tensors lie end to end, so some are not aligned."""
    tensors, end = [], 0
    for meta in metas:
        start, end = end, end + meta.num_bytes
        tensors.append(flat[start:end].clone().view(meta.torch_dtype).view(meta.shape))
    return tensors


def _collect(device: torch.device) -> None:
    """What frameworks call at the end of an update, to get memory back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
