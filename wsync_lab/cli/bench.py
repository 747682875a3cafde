"""``wsync bench``: time weight updates of a payload through each transport."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from wsync_lab.errors import ConfigError

_EXAMPLE = """\
examples:
  wsync bench --transports cpu,pinned,cuda_vmm --payload-bytes 1000000000 --output data/raw/host-1GB.jsonl
  wsync bench --transports pinned --sweep --output data/raw/host-sweep.jsonl

Trainer and engine are two processes. Every tensor changes between updates, the engine's bytes are
compared with the trainer's after the last one, and the machine's copy rates are measured in the same
run. Exit status: 0 done; 1 a transport failed (its record says why); 2 the request cannot be served,
and nothing was written."""
_SWEEP_BYTES = (1, 4, 16)  # the payload over each of these
_SWEEP_TENSORS = (1, 8)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="time weight updates without a training loop",
        description="Time weight updates of a payload through each transport.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--transports", default="cpu,pinned", metavar="A,B", help="which ones, in this order (cpu,pinned)")
    add(
        "--payload",
        default="synthetic",
        metavar="NAME",
        help="synthetic, or a model's shapes: qwen2.5-3b, ...",
    )
    add("--payload-bytes", type=int, default=100_000_000, metavar="N", help="of a synthetic one (10^8)")
    add("--num-tensors", type=int, default=100, metavar="N", help="of a synthetic one (100)")
    add("--slot-bytes", type=int, default=64 << 20, metavar="N", help="size of a staging slot (64 MiB)")
    add("--num-slots", type=int, default=2, metavar="N", help="slots in the ring (2)")
    add("--release-slots", action="store_true", help="give the ring's memory back between updates")
    add("--verify", default="off", metavar="MODE", help="off, or digest: compare before each commit")
    add("--engine", default="torch", metavar="NAME", help="what receives the weights: torch, or vllm (torch)")
    add("--warmups", type=int, default=2, metavar="N", help="updates before those that count (2)")
    add("--repeats", type=int, default=9, metavar="N", help="updates that count (9)")
    add("--cpu-repeats", type=int, default=3, metavar="N", help="the same for the slow transport cpu (3)")
    add("--sweep", action="store_true", help="vary payload and tensors, and fit the fixed costs")
    add("--json", action="store_true", help="print the records instead of tables")
    add("--output", type=Path, required=True, metavar="FILE", help="a new .jsonl file for the records")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from wsync_lab.bench.run import run_bench

    configs = _configs(args)
    if args.output.exists():
        raise ConfigError(
            f"{args.output} exists already, and raw records are written once: give another file"
        )
    records = [record for config in configs for record in run_bench(config, args.output, _say)]
    print(json.dumps(records) if args.json else _tables(records))
    return int(any(record["status"] == "failed" for record in records))


def _configs(args: argparse.Namespace) -> list[Any]:
    """The benchmark, or every combination of a sweep; all are checked before the first runs."""
    from wsync_lab.bench.config import BenchConfig

    names = {field.name for field in dataclasses.fields(BenchConfig)}
    given = {name: value for name, value in vars(args).items() if name in names}
    given |= {"transports": tuple(args.transports.split(",")), "hold_slots": not args.release_slots}
    if not args.sweep:
        return [BenchConfig(**given)]
    return [
        BenchConfig(**given | {"payload_bytes": args.payload_bytes // share, "num_tensors": count})
        for share in _SWEEP_BYTES
        for count in sorted({max(1, args.num_tensors // part) for part in _SWEEP_TENSORS})
    ]


def _tables(records: list[Any]) -> str:
    from wsync_lab.tables import markdown, syncs

    text = markdown.sync_summary(syncs.summary(records))
    costs = syncs.fixed_costs(records)
    return f"\n{text}\n\n{markdown.fixed_costs(costs)}" if len(costs) else f"\n{text}"


def _say(text: str) -> None:
    """Progress goes beside what a program may read."""
    print(text, file=sys.stderr)
