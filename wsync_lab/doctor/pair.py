"""The real protocol between two processes, once, with a payload of a few bytes."""

from typing import Any

import torch

from wsync_lab.bench.consumer import TensorEngine
from wsync_lab.bench.payloads import initial_values
from wsync_lab.config import SyncConfig
from wsync_lab.digest import tensor_digest
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.errors import WsyncError
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import TensorMeta, TensorSource

_TENSORS = (
    TensorMeta("embed.weight", "bfloat16", (33, 8)),
    TensorMeta("norm.weight", "float32", (3,)),
    TensorMeta("head.weight", "uint8", (4099,)),
)


def update_once(transport: str) -> dict[str, Any]:
    """``slot_memory`` and ``collective`` of an update whose every byte arrived.

    Raises:
        WsyncError: what is missing, or went wrong.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = initial_values(_TENSORS, device)
    tensors = [(meta.name, meta.dtype, list(meta.shape)) for meta in _TENSORS]
    with ProcessEngine(TensorEngine, tensors, device.type) as engine:
        config = SyncConfig(transport, slot_bytes=2048, deadline_s=20.0)
        sync = WeightSync.connect(TensorSource(weights.items()), engine, config, device=device)
        sync.update(1)
        received = engine.call("digests")
        sync.close()
    wrong = [name for name, tensor in weights.items() if received[name] != tensor_digest(tensor)]
    if wrong:
        raise WsyncError(f"other bytes arrived than were sent: {', '.join(wrong)}")
    return {"slot_memory": sync.slot_memory, "collective": sync.collective}
