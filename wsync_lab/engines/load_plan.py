"""Learn once where a model's ``load_weights`` puts every byte of a bucket; then replay it as copies.

``load_weights`` walks through names, fuses projections and copies tensor by tensor, which costs
far more than the bytes. Its effect on a bucket is a fixed set of copies, if each of its bytes is
copied exactly once, unchanged, and nothing else is written. That is observed, then proved once by
poisoning the destinations and comparing the replay; a bucket for which it does not hold keeps
``load_weights``, and ``reasons`` says why.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wsync_lab.copies import CopyBatch, Pair
from wsync_lab.digest import tensor_digests
from wsync_lab.packing import as_bytes

Parameters = Mapping[str, torch.Tensor | None]
_POISON = 0xA5


@dataclass
class LoadPlan:
    """What was learnt about the buckets of one plan, for the parameters where they lie now.

    Attributes:
        tables: dictionaries of the live parameters, as modules hold them; their values are
            looked up again at each update, since an engine may move them.
        reasons: why a bucket is not replayed, by its index.
    """

    tables: Sequence[Parameters]
    reasons: dict[int, str] = field(default_factory=dict)
    _batches: dict[int, tuple[int, CopyBatch]] = field(default_factory=dict)
    _places: list[int] = field(default_factory=list)

    def begin(self) -> bool:
        """An update starts: forget everything, and say so, if a parameter moved since then."""
        places = [tensor.data_ptr() for tensor in self._tensors()]
        moved = places != self._places
        if moved:
            self.forget()
        self._places = places
        return moved

    def forget(self) -> None:
        """Drop what was learnt, and every reference to slots and parameters with it."""
        self._batches.clear()
        self.reasons.clear()

    def replay(self, bucket: int, payload: torch.Tensor) -> bool:
        """Queue the copies of ``bucket`` out of ``payload`` (1-D uint8); False if not learnt."""
        address, batch = self._batches.get(bucket, (0, None))
        if batch is None or address != payload.data_ptr():
            return False
        batch.run()
        return True

    @contextmanager
    def learning(self, bucket: int, payload: torch.Tensor, num_bytes: int) -> Iterator[None]:
        """Watch the ``load_weights`` of ``bucket``, whose pieces have ``num_bytes`` bytes in all."""
        if self._batches.pop(bucket, None):
            self.reasons[bucket] = "its bytes lie at another address in every update"
        if bucket in self.reasons:
            yield
            return
        watch = _Watch(payload, self._tensors())
        with watch:
            yield
        reason = watch.refusal(num_bytes) or _disproof(watch.pairs)
        if reason:
            self.reasons[bucket] = reason
        else:
            self._batches[bucket] = payload.data_ptr(), CopyBatch(watch.pairs)

    def _tensors(self) -> Iterator[torch.Tensor]:
        return (tensor for table in self.tables for tensor in table.values() if tensor is not None)

    @property
    def path(self) -> str:
        """``load_plan``, ``load_weights``, or both where some buckets are not replayed."""
        kinds = (["load_plan"] if self._batches else []) + (["load_weights"] if self.reasons else [])
        return " and ".join(kinds) or "load_weights"


class LearnedLoads:
    """What an ``Applier`` answers that learns a ``plan``."""

    plan: LoadPlan

    def replay(self, bucket: int, payload: torch.Tensor) -> bool:
        return self.plan.replay(bucket, payload)

    def learning(self, bucket: int, payload: torch.Tensor, num_bytes: int) -> AbstractContextManager[None]:
        return self.plan.learning(bucket, payload, num_bytes)

    def forget(self) -> None:
        self.plan.forget()


class _Watch(TorchDispatchMode):
    """Notes every copy out of ``payload`` and every other write into a parameter."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and the guard against it imports the compiler: seconds."""
        return False

    def __init__(self, payload: torch.Tensor, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.pairs: list[Pair] = []
        self._foreign: list[str] = []
        self._start, self._end = payload.data_ptr(), payload.data_ptr() + payload.nbytes
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in parameters}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            targets = [args[0]] if isinstance(args[0], torch.Tensor) else args[0]
            for target in targets:
                self._note(func, target, *args[1:])
        return result

    def refusal(self, num_bytes: int) -> str:
        """Why the bucket cannot be replayed; empty if it can."""
        if self._foreign:
            return f"load_weights writes parameters by {self._foreign[0]}"
        for target, source in self.pairs:
            if target.dtype != source.dtype or target.shape != source.shape:
                return f"load_weights converts {source.dtype}{list(source.shape)}"
        copied = sorted((source.data_ptr(), source.nbytes) for _, source in self.pairs)
        if any(start + size > after for (start, size), (after, _) in pairwise(copied)):
            return "load_weights copies some bytes twice"
        total = sum(size for _, size in copied)
        return "" if total == num_bytes else f"load_weights copies {total} of {num_bytes} bytes"

    def _note(self, func: Any, target: torch.Tensor, *args: Any) -> None:
        is_copy = func is torch.ops.aten.copy_.default
        if is_copy and self._start <= args[0].data_ptr() < self._end and target.numel():
            self.pairs.append((target.detach(), args[0].detach()))
        elif target.numel() and target.untyped_storage().data_ptr() in self._storages:
            self._foreign.append(str(func))


def _disproof(pairs: list[Pair]) -> str:
    """Replay over poisoned destinations: what comes out must be what ``load_weights`` had left."""
    expected = tensor_digests([target for target, _ in pairs])
    for target, _ in pairs:
        as_bytes(target).fill_(_POISON) if target.is_contiguous() else target.zero_()
    CopyBatch(pairs).run()
    replayed = tensor_digests([target for target, _ in pairs])
    wrong = sum(one != other for one, other in zip(expected, replayed, strict=True))
    if wrong:
        for target, source in pairs:
            target.copy_(source)
    return f"replayed copies differ in {wrong} places" if wrong else ""
