"""What one adapter update must contain, and every reason why an engine cannot take it.

A manifest is complete before a byte moves: identity, base, configuration, and of each tensor
name, dtype, shape (so bytes) and digest. Its canonical encoding is MessagePack of the fields in
their order, with keys of maps sorted; its digest is the SHA-256 of that.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgspec
import torch

from wsync_lab.digest import tensor_digests
from wsync_lab.errors import ConfigError
from wsync_lab.lora.base import digest_of
from wsync_lab.lora.config import AdapterConfig
from wsync_lab.packing import describe
from wsync_lab.weights import TensorMeta

PREFIX = "base_model.model."  # PEFT's, before the path of the module that is adapted
UpdateId = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class AdapterManifest(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """One update.

    Attributes:
        update_id: rises from update to update, also when the trainer is restarted; see
            ``next_update_id``.
        base_digest: ``base.base_digest`` of the weights that the adapter was trained on.
        tensors, digests: in sending order; see ``wsync_lab.digest``.
        excluded: modules that the trainer adapts, or could, and leaves out, each with the reason.
    """

    update_id: UpdateId
    base_digest: str
    config: AdapterConfig
    tensors: tuple[TensorMeta, ...]
    digests: tuple[int, ...]
    excluded: dict[str, str] = {}

    @cached_property
    def digest(self) -> str:
        encoded = msgspec.msgpack.encode(self, order="deterministic")
        return hashlib.sha256(encoded).hexdigest()

    @cached_property
    def payload_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)

    @cached_property
    def payload_digest(self) -> str:
        """Of the tensors alone: it changes when, and only when, the policy did."""
        return digest_of((meta.name for meta in self.tensors), self.digests)


def build_manifest(
    update_id: int,
    base_digest: str,
    config: AdapterConfig,
    tensors: Mapping[str, torch.Tensor],
    excluded: Mapping[str, str] | None = None,
) -> AdapterManifest:
    """The manifest of ``tensors``, PEFT's names to whole tensors."""
    metadata = tuple(TensorMeta.of(name, tensor) for name, tensor in tensors.items())
    digests = tuple(tensor_digests(list(tensors.values())))
    return AdapterManifest(update_id, base_digest, config, metadata, digests, dict(excluded or {}))


def next_update_id(last: int = 0, clock_ns: Callable[[], int] = time.time_ns) -> int:
    """An id above ``last`` and above those of earlier runs: the time in ns, or ``last + 1``."""
    return max(last + 1, clock_ns())


def module_of(name: str) -> tuple[str, str]:
    """(path of the module, ``A`` or ``B``) of a tensor's name.

    Raises:
        ConfigError: not a name that PEFT saves a LoRA matrix under.
    """
    path = name.removeprefix(PREFIX)
    for matrix in ("A", "B"):
        module = path.removesuffix(f".lora_{matrix}.weight")
        if path not in (name, module) and module:
            return module, matrix
    raise ConfigError(f"{name} is no name of a LoRA matrix: {PREFIX}PATH.lora_A.weight, or lora_B")


@dataclass(frozen=True)
class AdapterTargets:
    """What an engine can take.

    Attributes:
        modules: path of each module that can have an adapter, and its (out, in) features.
        max_rank: highest rank that the engine was started for.
        dtype: the dtype that the engine holds adapters in.
        base_digest: ``base.base_digest`` of the weights it serves; None while it does not know them.
    """

    modules: Mapping[str, tuple[int, int]]
    max_rank: int
    dtype: str
    base_digest: str | None

    def faults(self, manifest: AdapterManifest) -> list[str]:
        """Every reason why the engine cannot take it: one text each, sorted; [] if it can."""
        found = [
            *self._of_base(manifest),
            *self._of_config(manifest.config),
            *self._of_names(manifest.tensors),
            *self._of_pairs(manifest),
        ]
        return sorted(found)

    def _of_base(self, manifest: AdapterManifest) -> Iterator[str]:
        if self.base_digest is None:
            yield "the engine knows no base weights: commit a verified full update, or adopt its checkpoint"
        elif manifest.base_digest != self.base_digest:
            yield (
                f"the adapter was trained on base {manifest.base_digest[:12]}, the engine serves "
                f"{self.base_digest[:12]}: send the base unmerged, or the adapter of this base"
            )
        if len(manifest.digests) != len(manifest.tensors):
            yield f"{len(manifest.digests)} digests for {len(manifest.tensors)} tensors"

    def _of_config(self, config: AdapterConfig) -> Iterator[str]:
        if config.highest_rank > self.max_rank:
            yield f"rank {config.highest_rank} is over the engine's max_lora_rank {self.max_rank}"
        if config.dtype != self.dtype:
            yield f"the adapter is {config.dtype}, the engine holds {self.dtype}: convert it in the trainer"
        for end in config.target_modules:
            if not any(AdapterConfig(1, 1, (end,)).targets(module) for module in self.modules):
                yield f"target module {end} is none of the engine's"

    def _of_names(self, tensors: Sequence[TensorMeta]) -> Iterator[str]:
        for name, count in Counter(meta.name for meta in tensors).items():
            if count > 1:
                yield f"{name} is sent {count} times"
            try:
                module_of(name)
            except ConfigError as error:
                yield str(error)

    def _of_pairs(self, manifest: AdapterManifest) -> Iterator[str]:
        config, sent = manifest.config, _by_module(manifest.tensors)
        targets = {module for module in self.modules if config.targets(module)}
        for module in targets - sent.keys() - manifest.excluded.keys():
            yield f"{module} is a target, and is missing"
        for module, matrices in sent.items():
            if module not in self.modules:
                yield f"{module} cannot have an adapter in this engine"
            elif module not in targets:
                yield f"{module} is sent, and is no target of the configuration"
            else:
                yield from self._of_module(module, matrices, config)

    def _of_module(
        self, module: str, matrices: Mapping[str, TensorMeta], config: AdapterConfig
    ) -> Iterator[str]:
        (out_features, in_features), rank = self.modules[module], config.rank_of(module)
        for matrix, shape in {"A": (rank, in_features), "B": (out_features, rank)}.items():
            if matrix not in matrices:
                yield f"{module} has no lora_{matrix}"
            elif matrices[matrix] != (planned := TensorMeta(matrices[matrix].name, config.dtype, shape)):
                takes = f"{planned.dtype}{list(shape)}"
                yield f"{describe(matrices[matrix])} is sent where the configuration says {takes}"


def _by_module(tensors: Sequence[TensorMeta]) -> dict[str, dict[str, TensorMeta]]:
    found: dict[str, dict[str, TensorMeta]] = {}
    for meta in tensors:
        try:
            module, matrix = module_of(meta.name)
        except ConfigError:
            continue
        found.setdefault(module, {})[matrix] = meta
    return found
