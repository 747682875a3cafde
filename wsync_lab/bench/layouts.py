"""Sets of tensors that broke other people's weight sync, filled from a seed."""

from collections.abc import Callable, Iterator

import torch

from wsync_lab.errors import ConfigError
from wsync_lab.weights import TensorMeta

Named = Iterator[tuple[str, torch.Tensor]]
_DTYPES = ("bfloat16", "float32", "uint8", "float8_e4m3fn", "float16", "int64", "bool")


class Draw:
    """Tensors of random bytes; the same seed gives the same ones on every device."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator, self._device = torch.Generator().manual_seed(seed), device

    def __call__(self, dtype: str, *shape: int) -> torch.Tensor:
        meta = TensorMeta("", dtype, shape)
        top = 2 if dtype == "bool" else 256  # other bytes are no bool
        data = torch.randint(0, top, (meta.num_bytes,), dtype=torch.uint8, generator=self._generator)
        return data.to(self._device).view(meta.torch_dtype).view(shape)


def _mixed_dtypes(draw: Draw) -> Named:
    for index in range(3 * len(_DTYPES)):
        dtype = _DTYPES[(3 * index + index // 7) % len(_DTYPES)]
        yield f"layers.{index}.{dtype}", draw(dtype, 3 + index)


def _odd_sizes(draw: Draw) -> Named:
    for index, num_bytes in enumerate((1, 3, 7, 255, 257, 4095)):
        yield f"odd.{index}", draw("uint8", num_bytes)
        yield f"wide.{index}", draw("bfloat16", 3)


def _empty_and_scalar(draw: Draw) -> Named:
    for index, shape in enumerate(((0,), (), (1, 0), (1,), (0, 4), (1, 1, 1))):
        yield f"shape.{index}", draw("bfloat16", *shape)


def _strided(draw: Draw) -> Named:
    yield "transposed", draw("float32", 17, 31).t()
    yield "every second", draw("bfloat16", 64, 10)[::2]
    yield "expanded", draw("float32", 1, 9).expand(6, 9)
    yield "narrowed", draw("float16", 20, 20)[3:11, 5:7]


def _larger_than_a_slot(draw: Draw) -> Named:
    yield "before", draw("bfloat16", 5)
    yield "large", draw("bfloat16", 300, 401)
    yield "after", draw("float32", 7)


def _special_values(draw: Draw) -> Named:
    """NaN with payloads, zeros of both signs, infinities: equal bytes, not equal values."""
    chosen = draw("uint8", 400).long() % 5
    bits = [0x7FC0_1234, -0x3F_0001, 0, -0x8000_0000, 0x7F80_0000]
    patterns = torch.tensor(bits, dtype=torch.int64, device=chosen.device)
    yield "special", patterns[chosen].to(torch.int32).view(torch.float32)


def _many_small(draw: Draw) -> Named:
    for index in range(400):
        yield f"layers.{index}.norm.weight", draw("bfloat16", 1 + index % 40)


def _tied(draw: Draw) -> Named:
    yield "embed.weight", draw("bfloat16", 61, 8)
    yield "norm.weight", draw("float32", 8)


_ALIASES = {"tied": {"lm_head.weight": "embed.weight"}}
_LAYOUTS: dict[str, Callable[[Draw], Named]] = {
    "mixed dtypes": _mixed_dtypes,
    "odd sizes": _odd_sizes,
    "empty and scalar": _empty_and_scalar,
    "strided": _strided,
    "larger than a slot": _larger_than_a_slot,
    "special values": _special_values,
    "many small": _many_small,
    "tied": _tied,
}
LAYOUT_NAMES = tuple(_LAYOUTS)


class LayoutSource:
    """``WeightSource`` of one layout; ``seed`` is the version of its values.

    Raises:
        ConfigError: there is no such layout.
    """

    def __init__(self, layout: str, seed: int, device: torch.device | None = None) -> None:
        if layout not in _LAYOUTS:
            raise ConfigError(f"unknown layout {layout!r}: choose one of {', '.join(LAYOUT_NAMES)}")
        self._make, self._aliases, self.seed = _LAYOUTS[layout], _ALIASES.get(layout, {}), seed
        self._device = device or torch.device("cpu")

    def metadata(self) -> tuple[TensorMeta, ...]:
        return tuple(TensorMeta.of(name, tensor) for name, tensor in self)

    def aliases(self) -> dict[str, str]:
        return self._aliases

    def __iter__(self) -> Named:
        return self._make(Draw(self.seed, self._device))
