"""The process groups of tensor- and pipeline-parallel ranks, laid out as Megatron does."""

from dataclasses import dataclass

import torch.distributed as dist

from wsync_lab.errors import ConfigError
from wsync_lab.lora.megatron.context import ConverterContext


@dataclass(frozen=True)
class ParallelGroups:
    """This rank's place: global rank ``pp_rank * tp_size + tp_rank`` (Megatron's order tp-pp)."""

    tp: dist.ProcessGroup
    pp: dist.ProcessGroup
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int


def build_groups(tp_size: int, pp_size: int, context: ConverterContext) -> ParallelGroups:
    """Of the default group; every rank calls it.

    Raises:
        ConfigError: the sizes do not make up the world, or the model does not divide over them.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    if tp_size * pp_size != world:
        raise ConfigError(f"tp_size {tp_size} x pp_size {pp_size} is not the world of {world} ranks")
    context.check_parallel(tp_size, pp_size)
    pp_rank, tp_rank = divmod(rank, tp_size)
    tp_groups = [dist.new_group(list(range(i * tp_size, (i + 1) * tp_size))) for i in range(pp_size)]
    pp_groups = [dist.new_group(list(range(i, world, tp_size))) for i in range(tp_size)]
    return ParallelGroups(tp_groups[pp_rank], pp_groups[tp_rank], tp_rank, tp_size, pp_rank, pp_size)
