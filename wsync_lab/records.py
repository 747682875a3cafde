"""Records: what was measured, as strict JSON Lines, one object a configuration and run.

Everything that notebooks, tables and the README show comes from here. A record is written once
and never edited; a failed run is a record too, with its error and what it measured until then.
"""

import fcntl
import math
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from wsync_lab.config import TRANSPORT_NAMES
from wsync_lab.errors import ConfigError

SCHEMA_VERSION = 1
Kind = Literal["sync", "step", "pinning", "probe", "lora", "fault"]
KINDS: tuple[str, ...] = get_args(Kind)
# The phases of a step add up to its wall time, those of a sync to its sync time.
PHASES = ("rollout", "reward", "reference", "train", "sync", "pause_resume", "other")
SYNC_PHASES = ("gather", "pack", "transfer", "apply", "commit")
Record = dict[str, Any]


class RecordError(ConfigError):
    """A record, or a file of records, that breaks the schema; the message names the field."""


class Step(msgspec.Struct):
    """One step of a ``step`` record; times in seconds, ``logprob_gap`` and ``kl_k3`` in nats."""

    step: int
    weight_version: int
    wall_s: float
    phase_times_s: dict[str, float]
    sync_phase_times_s: dict[str, float]
    sync_time_s: float
    pause_s: float
    resume_s: float
    reward_mean: float | None
    logprob_gap: float | None
    kl_k3: float | None


class Envelope(msgspec.Struct):
    """The fields that every kind of record has."""

    schema_version: int
    kind: Kind
    run_id: str
    status: Literal["ok", "failed"]
    error: str | None
    config: dict[str, Any]
    provenance: dict[str, Any]


class StepRecord(Envelope):
    """One transport in one run of the experiment."""

    steps: list[Step]


class SyncRecord(Envelope):
    """One transport in one benchmark: a raw sample an update, after warm-up.

    Attributes:
        ceilings: raw samples of the machine's own copy rates in GB/s, by name.
        limit_s: the fewest bytes the path must move, over the medians of ``ceilings``.
        init_time_s: agreeing on the plan and mapping the slots, once.
        peak_extra_bytes: most memory above the state before connecting, by process.
        num_mismatched: tensors whose bytes differ after the last update; null if not compared.
    """

    ceilings: dict[str, list[float]]
    limit_s: float
    init_time_s: float | None
    sync_times_s: list[float]
    phase_times_s: dict[str, list[float]]
    pause_s: list[float]
    resume_s: list[float]
    peak_extra_bytes: dict[str, int] | None
    num_mismatched: int | None


class FaultOutcome(msgspec.Struct):
    """One fault that was injected into an adapter update.

    Attributes:
        message: the type of the message that it met, the ``at``-th in its ``direction``.
        error: what the trainer was told; empty if the update succeeded all the same.
        served: what the engine answered afterwards: ``old`` or ``new``, each wholly; ``restarted``
            where its process was killed; anything else is a failure.
        next_update: whether the next update was served.
        seconds: until the trainer knew.
    """

    fault: str
    direction: str
    at: int
    message: str
    error: str
    served: Literal["old", "new", "restarted", "mixture"]
    next_update: bool
    seconds: float


class PinningRecord(Envelope):
    """One way of exporting buckets: a sample a bucket.

    Attributes:
        trainer_bytes, worker_bytes: memory that the two processes share, as each holds it.
        growth_bytes: how much it rises by from bucket to bucket, once it is filled.
        num_stale: tensors that arrived with other bytes than were sent.
        num_nans: values that became NaN.
    """

    trainer_bytes: list[int]
    worker_bytes: list[int]
    bucket_times_s: list[float]
    growth_bytes: float
    num_stale: int
    num_nans: int


class FaultRecord(Envelope):
    """Every fault at every message, for one transport and engine."""

    faults: list[FaultOutcome]


def new_run_id(now: datetime | None = None) -> str:
    """``20261201T081500-ab12``: the time in UTC and two random bytes."""
    return f"{now or datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(2).hex()}"


def project_folder(start: Path | None = None) -> Path:
    """The checkout of this project that ``start`` (the working directory) lies in.

    Raises:
        ConfigError: it lies in none.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "data" / "published").is_dir():
            return folder
    raise ConfigError(f"{here} is outside a checkout of wsync_lab: change into one")


def finite_or_none(value: float) -> float | None:
    """The only way for a metric that may be NaN or infinite into a record: it becomes null."""
    return value if math.isfinite(value) else None


def append(path: Path, record: Record) -> None:
    """Add ``record`` as one line of ``path``: all of it or, on any error, none of it.

    Several processes may append to one file at once.

    Raises:
        RecordError: the record breaks the schema, or holds NaN or infinity.
    """
    validate(record)
    line = msgspec.json.encode(record) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = os.fstat(file.fileno()).st_size
        try:
            _write_line(file.fileno(), line)
        except BaseException:
            os.ftruncate(file.fileno(), before)
            raise


def read(*paths: Path) -> list[Record]:
    """All records of ``paths``, in order; a folder stands for the ``.jsonl`` files in it.

    Raises:
        RecordError: a path is missing, there is no record, or a line breaks the schema (the
            message starts with ``file:line``).
    """
    records = [record for file in _files(paths) for record in _read_file(file)]
    if not records:
        raise RecordError(f"no records in {', '.join(map(str, paths))}: give a .jsonl file that has some")
    return records


def validate(record: Record) -> None:
    """Check one record against the schema of its kind.

    Raises:
        RecordError: names the field, as ``$.steps[0].wall_s``.
    """
    try:
        parsed = msgspec.convert(record, _schema(record))
    except msgspec.ValidationError as error:
        raise RecordError(str(error)) from None
    for problem in (*_inconsistencies(parsed), *_wrong_phases(parsed), *_not_finite(record, "$")):
        raise RecordError(problem)


def _schema(record: object) -> type[Envelope]:
    kind = record.get("kind") if isinstance(record, dict) else None
    schemas: dict[str, type[Envelope]] = {
        "step": StepRecord,
        "sync": SyncRecord,
        "lora": SyncRecord,
        "fault": FaultRecord,
        "pinning": PinningRecord,
    }
    return schemas.get(str(kind), Envelope)


def _inconsistencies(record: Envelope) -> Iterator[str]:
    if record.schema_version != SCHEMA_VERSION:
        yield f"schema_version {record.schema_version} instead of {SCHEMA_VERSION} - at `$.schema_version`"
    if (record.status == "failed") != bool(record.error):
        yield f"status {record.status!r} with error {record.error!r} - at `$.error`"
    if isinstance(record, SyncRecord) and record.status == "ok" and record.num_mismatched != 0:
        yield f"a speed with {record.num_mismatched} mismatched tensors - at `$.num_mismatched`"
    transport = record.config.get("transport")
    if transport is not None and transport not in TRANSPORT_NAMES:
        yield f"unknown transport {transport!r} - at `$.config.transport`"


def _wrong_phases(record: Envelope) -> Iterator[str]:
    for index, step in enumerate(record.steps if isinstance(record, StepRecord) else ()):
        for field, expected in (("phase_times_s", PHASES), ("sync_phase_times_s", SYNC_PHASES)):
            if differing := set(getattr(step, field)) ^ set(expected):
                names = ", ".join(sorted(differing))
                yield f"missing or unknown phase {names} - at `$.steps[{index}].{field}`"


def _not_finite(value: object, field: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{value} is no JSON number: use finite_or_none - at `{field}`"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, f"{field}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{field}[{index}]")


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise RecordError(f"{path} does not exist: give a .jsonl file or a folder of them")
        yield from sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _read_file(file: Path) -> Iterator[Record]:
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            record = msgspec.json.decode(line)
            validate(record)
        except (msgspec.DecodeError, RecordError) as error:
            raise RecordError(f"{file}:{number}: {error}") from None
        yield record


def _write_line(fd: int, line: bytes) -> None:
    written = os.write(fd, line)
    if written != len(line):
        raise OSError(f"only {written} of {len(line)} bytes of the record fitted: free some disk space")
    os.fsync(fd)
