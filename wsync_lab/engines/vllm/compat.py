"""What the adapter touches of vLLM's internals, for 0.24 and 0.32.

vLLM's layerwise reload moves every layer to the meta device, buffers the tensors of a layer
until it is complete, then packs it and copies the result into the tensors the kernels use. Its
bookkeeping is one ``LayerReloadingInfo`` a layer.
"""

from collections.abc import Iterator
from inspect import BoundArguments
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO
from vllm.platforms import current_platform

_PLAIN_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)


def holds_plain_weights(model: nn.Module) -> bool:
    """Whether the kernels read the parameters as they were loaded: no packing, no derived copies.

    True if every quantisation method is one that leaves weights alone, and every parameter
    still is as the model created it. The CPU's methods of the same name pack weights, some
    beside an unchanged parameter.
    """
    if current_platform.is_cpu():
        return False
    return all(_is_plain(layer) for layer in model.modules())


def _is_plain(layer: nn.Module) -> bool:
    method = getattr(layer, "quant_method", None)
    if isinstance(layer, MLAAttention) or not (method is None or isinstance(method, _PLAIN_METHODS)):
        return False
    created = LAYERWISE_INFO[layer].restore_metadata[0]
    live = {name: tensor for name, tensor in layer._parameters.items() if tensor is not None}
    return all(_same_layout(live.get(name), tensor) for name, tensor in created.items())


def _same_layout(live: torch.Tensor | None, created: torch.Tensor) -> bool:
    return live is not None and (live.dtype, live.shape, live.stride()) == (
        created.dtype,
        created.shape,
        created.stride(),
    )


def tied_heads(model: nn.Module) -> list[ParallelLMHead]:
    """Output heads whose weight is the parameter of an embedding: loading never visits them."""
    embeddings = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    return [
        head
        for head in embeddings
        if isinstance(head, ParallelLMHead)
        and any(other is not head and other.weight is head.weight for other in embeddings)
    ]


def pending_arguments(model: nn.Module) -> Iterator[BoundArguments]:
    """The arguments of buffered loads: what layers that are incomplete so far hold on to."""
    for layer in model.modules():
        for _, arguments in LAYERWISE_INFO[layer].loaded_weights:
            yield arguments


def forget_buffered_loads(model: nn.Module) -> None:
    """Make every layer under reload look as if none of its tensors had come.

    The finalize step then puts the kernels' own tensors back, instead of packing a layer of
    which a part is uninitialised memory.
    """
    for layer in model.modules():
        info = LAYERWISE_INFO[layer]
        if info.kernel_tensors is not None:
            info.load_numel, info.load_numel_total = 0, info.load_numel_total or 1
            info.loaded_weights.clear()


def rename_mapper(model: Any) -> Any:
    """What turns checkpoint names into vLLM's, where a model renames; stacking is not part of it."""
    mapper: Any = getattr(model, "hf_to_vllm_mapper", None)
    return mapper.get_rename_mapper() if hasattr(mapper, "get_rename_mapper") else mapper
