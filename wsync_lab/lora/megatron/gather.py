"""From the shards of all ranks to one whole adapter under PEFT's names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist

from wsync_lab.lora.megatron.context import ConverterContext
from wsync_lab.lora.megatron.groups import ParallelGroups
from wsync_lab.lora.megatron.layout import from_peft, to_peft
from wsync_lab.lora.megatron.names import MatrixName, first_layer
from wsync_lab.lora.megatron.sharding import join, shape_of, split
from wsync_lab.lora.megatron.survey import survey

Named = tuple[MatrixName, torch.Tensor]


@dataclass(frozen=True)
class Converted:
    """A whole adapter: tensors by PEFT's names, and what was left out by rule, with the reason."""

    tensors: dict[str, torch.Tensor]
    excluded: dict[str, str]


def convert_adapter(
    shards: Mapping[str, torch.Tensor], context: ConverterContext, groups: ParallelGroups, flush_bytes: int
) -> Converted:
    """Gather and convert the adapter; a collective, which gives every rank the whole of it.

    Args:
        shards: this rank's, by Megatron's names with the layers of its own stage.
        flush_bytes: how many bytes of shards may wait before they are gathered and converted;
            0 converts one at a time.

    Raises:
        ProtocolError: shards are missing, unknown or of another shape, on any rank: the same error
            on all; or ranks disagree on a matrix that is not sharded.
    """
    own, excluded = survey(shards, context, groups)
    tensors: dict[str, torch.Tensor] = {}
    for batch in _batches(_all_names(context), flush_bytes, groups, context):
        tensors |= _convert_batch(batch, own, groups, context)
    return Converted(tensors, excluded)


def shard_adapter(
    tensors: Mapping[str, torch.Tensor],
    context: ConverterContext,
    *,
    tp_rank: int,
    tp_size: int,
    pp_rank: int,
    pp_size: int,
) -> dict[str, torch.Tensor]:
    """One rank's shards of a whole adapter under PEFT's names: what ``convert_adapter`` undoes."""
    layers = context.num_layers // pp_size
    first = first_layer(pp_rank, pp_size, context)
    shards = {}
    for layer in range(layers):
        for module in context.modules:
            for matrix in "AB":
                whole = from_peft(MatrixName(first + layer, module, matrix), tensors, context)
                local = MatrixName(layer, module, matrix)
                shards[str(local)] = split(local, whole, tp_size)[tp_rank]
    return shards


def _all_names(context: ConverterContext) -> list[MatrixName]:
    """The whole adapter's, in the order that every rank walks through them."""
    layers = range(context.num_layers)
    return sorted(MatrixName(*each) for each in product(layers, context.modules, "AB"))


def _batches(
    names: Sequence[MatrixName], flush_bytes: int, groups: ParallelGroups, context: ConverterContext
) -> Iterator[list[MatrixName]]:
    """Cut where the next shard would exceed ``flush_bytes``: the same on every rank."""
    waiting: list[MatrixName] = []
    waiting_bytes = 0
    for name in names:
        rows, columns = shape_of(name, groups.tp_size, context)
        num_bytes = rows * columns * _dtype(context).itemsize
        if waiting and waiting_bytes + num_bytes > flush_bytes:
            yield waiting
            waiting, waiting_bytes = [], 0
        waiting.append(name)
        waiting_bytes += num_bytes
    if waiting:
        yield waiting


def _convert_batch(
    names: Sequence[MatrixName],
    own: Mapping[MatrixName, torch.Tensor],
    groups: ParallelGroups,
    context: ConverterContext,
) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, shard in [_over_stages(name, own, groups, context) for name in names]:
        shards = [torch.empty_like(shard) for _ in range(groups.tp_size)]
        dist.all_gather(shards, shard, group=groups.tp)
        tensors |= to_peft(name, join(name, shards), context)
    return tensors


def _over_stages(
    name: MatrixName,
    own: Mapping[MatrixName, torch.Tensor],
    groups: ParallelGroups,
    context: ConverterContext,
) -> Named:
    """This tensor-parallel rank's shard of ``name``, from the stage that holds the layer."""
    owner = name.layer // (context.num_layers // groups.pp_size)
    shape = shape_of(name, groups.tp_size, context)
    shard = own[name].contiguous() if groups.pp_rank == owner else torch.empty(shape, dtype=_dtype(context))
    dist.broadcast(shard, group=groups.pp, group_src=owner)
    return name, shard


def _dtype(context: ConverterContext) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, context.dtype)
    return dtype
