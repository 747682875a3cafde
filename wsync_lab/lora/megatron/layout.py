"""Between Megatron's fused matrices and the projections of Hugging Face's models.

The rows of linear_qkv lie group by group: the query heads of a group, its key head, its value
head (``QKVConverOp`` in ``template.py`` of mcore_adapter). The projections that a fused layer
holds share its ``A``.
"""

from collections.abc import Mapping

import torch

from wsync_lab.lora.megatron.context import PARTS, ConverterContext
from wsync_lab.lora.megatron.names import MatrixName


def to_peft(name: MatrixName, whole: torch.Tensor, context: ConverterContext) -> dict[str, torch.Tensor]:
    """PEFT's tensors in ``whole``, by name; contiguous, each with memory of its own."""
    parts = PARTS[name.module]
    if name.matrix == "A":
        pieces = [whole] * len(parts)
    elif name.module == "self_attention.linear_qkv":
        pieces = _split_qkv(whole, context)
    else:
        pieces = list(whole.chunk(len(parts)))
    named = zip(parts, pieces, strict=True)
    return {name.peft(part): piece.clone(memory_format=torch.contiguous_format) for part, piece in named}


def from_peft(
    name: MatrixName, tensors: Mapping[str, torch.Tensor], context: ConverterContext
) -> torch.Tensor:
    """The fused matrix ``name``, of PEFT's tensors: the inverse of ``to_peft``.

    The ``A`` of a fused layer is that of its first projection: they are one.
    """
    pieces = [tensors[name.peft(part)] for part in PARTS[name.module]]
    if name.matrix == "A":
        return pieces[0].contiguous()
    return _join_qkv(pieces, context) if name.module == "self_attention.linear_qkv" else torch.cat(pieces)


def _split_qkv(whole: torch.Tensor, context: ConverterContext) -> list[torch.Tensor]:
    groups, dim = context.num_query_groups, context.head_dim
    per_group = context.num_attention_heads // groups
    rows = whole.view(groups, (per_group + 2) * dim, context.rank)
    return [part.reshape(-1, context.rank) for part in rows.split([per_group * dim, dim, dim], dim=1)]


def _join_qkv(pieces: list[torch.Tensor], context: ConverterContext) -> torch.Tensor:
    by_group = [piece.reshape(context.num_query_groups, -1, context.rank) for piece in pieces]
    return torch.cat(by_group, dim=1).reshape(-1, context.rank)
