"""What the trainer sends: names, dtypes and shapes first, full tensors on demand."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from typing import Protocol

import msgspec
import torch

from wsync_lab.errors import ConfigError

# Wrappers that add a segment to a parameter's name without changing the parameter.
_WRAPPER_SEGMENTS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


class TensorMeta(msgspec.Struct, frozen=True):
    """Identity of one full (unsharded) tensor on the wire.

    ``dtype`` is torch's own name without the module, for example ``bfloat16``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"{self.name}: torch {torch.__version__} has no dtype {self.dtype!r}")
        return dtype

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.torch_dtype.itemsize

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "TensorMeta":
        return cls(name, _dtype_name(tensor.dtype), tuple(tensor.shape))


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class WeightSource(Protocol):
    """The trainer's weights. ``metadata()`` and iteration agree element for element."""

    def metadata(self) -> tuple[TensorMeta, ...]:
        """Names, dtypes and full shapes, in sending order, without a gather."""
        ...

    def aliases(self) -> Mapping[str, str]:
        """Tied names that are not sent, each with the name that carries its bytes."""
        ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors, one at a time. A collective where the module is sharded: every rank
        that shares a parameter iterates in lockstep."""
        ...


class ModuleSource:
    """``WeightSource`` over the parameters of a plain or FSDP2-sharded module.

    The order is that of ``named_parameters()``, the same on every rank. A tied parameter is
    sent once, under the first of its names.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def metadata(self) -> tuple[TensorMeta, ...]:
        return tuple(TensorMeta.of(name, parameter) for name, parameter in self._unique())

    def aliases(self) -> dict[str, str]:
        first_name = {id(parameter): name for name, parameter in self._unique()}
        every_name = self._module.named_parameters(remove_duplicate=False)
        pairs = ((canonical_name(name), first_name[id(parameter)]) for name, parameter in every_name)
        return {name: sent for name, sent in pairs if name != sent}

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._unique():
            yield name, full_tensor(parameter)

    def _unique(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in self._module.named_parameters():
            yield canonical_name(name), parameter


class TensorSource:
    """``WeightSource`` over named tensors that are already whole."""

    def __init__(
        self, tensors: Iterable[tuple[str, torch.Tensor]], aliases: Mapping[str, str] | None = None
    ) -> None:
        self._tensors = list(tensors)
        self._aliases = dict(aliases or {})

    def metadata(self) -> tuple[TensorMeta, ...]:
        return tuple(TensorMeta.of(name, tensor) for name, tensor in self._tensors)

    def aliases(self) -> dict[str, str]:
        return self._aliases

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors)


def canonical_name(name: str) -> str:
    """``name`` without the segments that compile, checkpoint and FSDP1 wrappers insert."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_SEGMENTS)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole, detached tensor; an all-gather when ``tensor`` is a DTensor."""
    detached = tensor.detach()
    gather = getattr(detached, "full_tensor", None)
    return gather() if gather is not None else detached
