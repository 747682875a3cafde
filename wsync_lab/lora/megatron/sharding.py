"""How Megatron shards an adapter's matrices over tensor-parallel ranks, and how shards are joined.

A column-parallel layer (linear_qkv, linear_fc1) has its ``A`` on every rank and the rows of ``B``
split; a row-parallel one (linear_proj, linear_fc2) the columns of ``A`` split and ``B`` on every
rank (``dist_converter.py`` of mcore_adapter, ``lora_config``). A shard of linear_fc1 holds its
part of gate, then its part of up: joined end to end they would be interleaved.
"""

from collections.abc import Sequence

import torch

from wsync_lab.errors import ProtocolError
from wsync_lab.lora.megatron.context import ConverterContext
from wsync_lab.lora.megatron.names import MatrixName

_SPLIT_DIM = {
    ("self_attention.linear_qkv", "B"): 0,
    ("mlp.linear_fc1", "B"): 0,
    ("self_attention.linear_proj", "A"): 1,
    ("mlp.linear_fc2", "A"): 1,
}
_GATED = ("mlp.linear_fc1", "B")


def shape_of(name: MatrixName, tp_size: int, context: ConverterContext) -> tuple[int, int]:
    """Shape of one rank's shard."""
    out_features, in_features = context.features[name.module]
    shape = [context.rank, in_features] if name.matrix == "A" else [out_features, context.rank]
    dim = _SPLIT_DIM.get((name.module, name.matrix))
    if dim is not None:
        shape[dim] //= tp_size
    return shape[0], shape[1]


def split(name: MatrixName, whole: torch.Tensor, tp_size: int) -> list[torch.Tensor]:
    """The shard of every rank, in order; contiguous."""
    kind = name.module, name.matrix
    if kind not in _SPLIT_DIM:
        return [whole.contiguous()] * tp_size
    if kind == _GATED:
        gate, up = whole.chunk(2)
        pairs = zip(gate.chunk(tp_size), up.chunk(tp_size), strict=True)
        return [torch.cat(pair) for pair in pairs]
    return [shard.contiguous() for shard in whole.chunk(tp_size, dim=_SPLIT_DIM[kind])]


def join(name: MatrixName, shards: Sequence[torch.Tensor]) -> torch.Tensor:
    """The whole matrix, of the shards of every rank.

    Raises:
        ProtocolError: ranks hold different copies of a matrix that is not sharded.
    """
    kind = name.module, name.matrix
    if kind not in _SPLIT_DIM:
        if any(not torch.equal(shard, shards[0]) for shard in shards):
            raise ProtocolError(f"{name} differs between tensor-parallel ranks, which should hold one matrix")
        return shards[0]
    if kind == _GATED:
        halves = [shard.chunk(2) for shard in shards]
        return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
    return torch.cat(list(shards), dim=_SPLIT_DIM[kind])
