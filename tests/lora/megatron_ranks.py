"""Trainer ranks as Megatron has them, each a process; run as a program it writes a record:

python -m tests.lora.megatron_ranks TP PP FILE.jsonl
"""

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.core.ports import free_port
from tests.lora.adapters_of import values
from wsync_lab import provenance, records
from wsync_lab.digest import tensor_digest
from wsync_lab.lora.manifest import PREFIX
from wsync_lab.lora.megatron import gather
from wsync_lab.lora.megatron.context import PARTS, ConverterContext
from wsync_lab.lora.megatron.gather import Converted, convert_adapter, shard_adapter
from wsync_lab.lora.megatron.groups import ParallelGroups, build_groups
from wsync_lab.lora.megatron.names import MatrixName

CONTEXT = ConverterContext(
    rank=4,
    alpha=8.0,
    dtype="bfloat16",
    modules=tuple(PARTS),
    num_layers=8,
    hidden_size=48,
    ffn_hidden_size=40,
    num_attention_heads=8,
    num_query_groups=4,
    head_dim=6,
)
FLUSHES = ["1 tensors", "7 tensors", "never", "0 bytes", "3000 bytes"]
Digests = dict[str, int]


def whole_adapter(context: ConverterContext, seed: int) -> dict[str, torch.Tensor]:
    """Under PEFT's names; projections that Megatron fuses share their ``A``."""
    tensors = {}
    for layer in range(context.num_layers):
        for module, parts in PARTS.items():
            if module in context.modules:
                for part in parts:
                    path = f"model.layers.{layer}.{part}"
                    (rows, columns), shared = _features(part, context), f"{layer} {module}"
                    a = values(f"{shared} A", seed, (context.rank, columns), context.dtype)
                    tensors[f"{PREFIX}{path}.lora_A.weight"] = a
                    b = values(f"{path} B", seed, (rows, context.rank), context.dtype)
                    tensors[f"{PREFIX}{path}.lora_B.weight"] = b
    return tensors


def _features(part: str, context: ConverterContext) -> tuple[int, int]:
    heads = context.num_attention_heads * context.head_dim
    keys = context.num_query_groups * context.head_dim
    hidden, wide = context.hidden_size, context.ffn_hidden_size
    return {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }[part]


def own_shards(context: ConverterContext, tp_size: int, pp_size: int, seed: int) -> dict[str, torch.Tensor]:
    pp_rank, tp_rank = divmod(dist.get_rank(), tp_size)
    return shard_adapter(
        whole_adapter(context, seed),
        context,
        tp_rank=tp_rank,
        tp_size=tp_size,
        pp_rank=pp_rank,
        pp_size=pp_size,
    )


def digests_of(converted: Converted) -> Digests:
    """In order of names as they came."""
    return {name: tensor_digest(tensor) for name, tensor in converted.tensors.items()}


def rank_main(rank: int, tp: int, pp: int, port: int, spoil: str, flushes: list[str], replies: Any) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=tp * pp)
    groups = build_groups(tp, pp, CONTEXT)
    shards = own_shards(CONTEXT, tp, pp, seed=1)
    _spoil(shards, spoil if rank == tp * pp - 1 else "")
    try:
        made = [flushed(flush, shards, groups) for flush in flushes]
        replies.put((rank, [digests_of(each) for each in made], made[0].excluded, ""))
    except Exception as error:  # the test asserts on it
        replies.put((rank, [], {}, f"{type(error).__name__}: {error}"))
    dist.barrier()
    dist.destroy_process_group()


def flushed(flush: str, shards: dict[str, torch.Tensor], groups: ParallelGroups) -> Converted:
    """Convert with a flush after so many ``tensors``, or when so many ``bytes`` wait, or never."""
    if flush == "never":
        return convert_adapter(shards, CONTEXT, groups, 1 << 60)
    number, unit = flush.split()
    if unit == "bytes":
        return convert_adapter(shards, CONTEXT, groups, int(number))
    by_size, gather._batches = gather._batches, partial(_by_count, int(number))
    try:
        return convert_adapter(shards, CONTEXT, groups, 0)
    finally:
        gather._batches = by_size


def _by_count(count: int, names: Sequence[MatrixName], *_: object) -> Iterator[list[MatrixName]]:
    for first in range(0, len(names), count):
        yield list(names[first : first + count])


def _spoil(shards: dict[str, torch.Tensor], how: str) -> None:
    """What the last rank has that the others do not expect."""
    name = "decoder.layers.0.mlp.linear_fc1.lora_A.weight"
    if how == "missing":
        del shards[name]
    if how == "shape":
        shards[name] = shards[name][:2]
    if how == "differs":
        shards[name] = shards[name] + 1
    if how == "gdn":
        shards["decoder.layers.0.self_attention.in_proj.lora_A.weight"] = torch.zeros(4, 48)


def run_ranks(tp: int, pp: int, flushes: list[str], spoil: str = "") -> list[tuple[Any, ...]]:
    """(rank, digests for each of ``flushes``, excluded, error) of every rank, in order."""
    multiprocessing.set_forkserver_preload(["torch", "wsync_lab.engines.process"])
    context = multiprocessing.get_context("forkserver")
    replies, port = context.Queue(), free_port()
    arguments = tp, pp, port, spoil, flushes, replies
    ranks = [context.Process(target=rank_main, args=(rank, *arguments)) for rank in range(tp * pp)]
    for process in ranks:
        process.start()
    try:
        return sorted(replies.get(timeout=120) for _ in ranks)
    finally:
        for process in ranks:
            process.join(30)
            process.kill()


def record(tp: int, pp: int) -> dict[str, Any]:
    """Whether every rank converts to what one process does, whenever buffers are flushed."""
    found, (one, *_) = run_ranks(tp, pp, FLUSHES), run_ranks(1, 1, ["never"])
    expected = one[1][0]
    wrong = sum(digests != expected for _, of_flushes, _, _ in found for digests in of_flushes)
    return {
        "schema_version": records.SCHEMA_VERSION,
        "kind": "probe",
        "run_id": records.new_run_id(),
        "status": "failed" if wrong else "ok",
        "error": f"{wrong} conversions differ from that of one process" if wrong else None,
        "config": {"model": "lora-megatron", "tp": tp, "pp": pp, "flushes": FLUSHES},
        "provenance": provenance.collect(emulated_placement=True),
        "num_tensors": len(expected),
        "num_conversions": len(found) * len(FLUSHES),
        "num_mismatched": wrong,
    }


if __name__ == "__main__":
    tp_size, pp_size, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    records.append(path, record(tp_size, pp_size))
