"""Have all ranks what the context says? Asked before the first tensor moves, answered alike."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist

from wsync_lab.errors import ProtocolError
from wsync_lab.lora.megatron.context import EXCLUDED, ConverterContext
from wsync_lab.lora.megatron.groups import ParallelGroups
from wsync_lab.lora.megatron.names import MatrixName, first_layer, parse
from wsync_lab.lora.megatron.sharding import shape_of
from wsync_lab.packing import describe
from wsync_lab.weights import TensorMeta


def survey(
    shards: Mapping[str, torch.Tensor], context: ConverterContext, groups: ParallelGroups
) -> tuple[dict[MatrixName, torch.Tensor], dict[str, str]]:
    """(this rank's shards by the whole model's names, modules of all ranks that are left out).

    Raises:
        ProtocolError: a rank lacks a shard, or has one that the context does not know; every rank
            raises it, so that none waits for another in a collective.
    """
    first = first_layer(groups.pp_rank, groups.pp_size, context)
    named = {_in_whole_model(name, first): shard for name, shard in shards.items()}
    own = {name: shard for name, shard in named.items() if name.module not in EXCLUDED}
    left_out = {_module(name): EXCLUDED[name.module] for name in named.keys() - own.keys()}
    faults = sorted(_faults(own, context, groups))
    everywhere = _of_all_ranks((faults, left_out), groups)
    if found := sorted({fault for faults_there, _ in everywhere for fault in faults_there}):
        raise ProtocolError("; ".join(found))
    return own, {module: why for _, there in everywhere for module, why in sorted(there.items())}


def _faults(
    own: Mapping[MatrixName, torch.Tensor], context: ConverterContext, groups: ParallelGroups
) -> Iterator[str]:
    where = f"rank tp={groups.tp_rank} pp={groups.pp_rank}"
    expected = _expected(context, groups)
    for name in expected.keys() - own.keys():
        yield f"{where} has no {name}"
    for name, shard in own.items():
        meta = TensorMeta.of(str(name), shard)
        if name not in expected:
            yield f"{where} has {name}, which the context does not"
        elif meta != expected[name]:
            yield f"{where} has {describe(meta)}, not {describe(expected[name])}"


def _expected(context: ConverterContext, groups: ParallelGroups) -> dict[MatrixName, TensorMeta]:
    first, layers = first_layer(groups.pp_rank, groups.pp_size, context), context.num_layers // groups.pp_size
    names = [
        MatrixName(first + layer, module, matrix)
        for layer in range(layers)
        for module in context.modules
        for matrix in "AB"
    ]
    return {
        name: TensorMeta(str(name), context.dtype, shape_of(name, groups.tp_size, context)) for name in names
    }


def _of_all_ranks(
    mine: tuple[list[str], dict[str, str]], groups: ParallelGroups
) -> list[tuple[list[str], dict[str, str]]]:
    columns: list[tuple[list[str], dict[str, str]]] = [mine] * groups.pp_size
    dist.all_gather_object(columns, mine, group=groups.pp)
    rows: list[list[tuple[list[str], dict[str, str]]]] = [columns] * groups.tp_size
    dist.all_gather_object(rows, columns, group=groups.tp)
    return [rank for row in rows for rank in row]


def _in_whole_model(name: str, first: int) -> MatrixName:
    local = parse(name)
    return MatrixName(first + local.layer, local.module, local.matrix)


def _module(name: MatrixName) -> str:
    return f"model.layers.{name.layer}.{name.module}"
