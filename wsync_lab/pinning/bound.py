"""How large a persistent staging buffer of torch's IPC path must be, by parameter dtype.

Frameworks walk through the state dict, collect parameters until the next one would exceed the
bucket, then flatten what waits, one flat tensor a dtype (data/published/miles_diffusion_65.json
has the report). Offsets within a flat tensor are not aligned: bytes add up.
"""

from collections.abc import Iterable, Iterator, Mapping

from wsync_lab.errors import ConfigError
from wsync_lab.weights import TensorMeta

Group = tuple[str, list[TensorMeta]]  # a dtype, and its parameters in one bucket


def buckets(tensors: Iterable[TensorMeta], bucket_bytes: int) -> Iterator[list[Group]]:
    """The flat tensors of every bucket, in order.

    Raises:
        ConfigError: ``bucket_bytes`` is not positive.
    """
    if bucket_bytes <= 0:
        raise ConfigError(f"bucket_bytes is {bucket_bytes}: give a number above 0")
    waiting: list[TensorMeta] = []
    for tensor in tensors:
        if waiting and sum(each.num_bytes for each in waiting) + tensor.num_bytes > bucket_bytes:
            yield _by_dtype(waiting)
            waiting = []
        waiting.append(tensor)
    if waiting:
        yield _by_dtype(waiting)


def staging_bytes(tensors: Iterable[TensorMeta], bucket_bytes: int) -> dict[str, int]:
    """By dtype, the bytes that no flat tensor of it exceeds, whatever the order of parameters.

    ``min(all bytes of the dtype, max(bucket_bytes, its largest parameter))``: a bucket holds
    ``bucket_bytes`` at most, unless it is one parameter that is larger.
    """
    sizes: dict[str, list[int]] = {}
    for tensor in tensors:
        sizes.setdefault(tensor.dtype, []).append(tensor.num_bytes)
    return {dtype: min(sum(each), max(bucket_bytes, *each)) for dtype, each in sizes.items()}


def _by_dtype(waiting: Iterable[TensorMeta]) -> list[Group]:
    groups: dict[str, list[TensorMeta]] = {}
    for tensor in waiting:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.items())


def flat_bytes(group: Group) -> int:
    return sum(tensor.num_bytes for tensor in group[1])


def largest(groups: Iterable[Group]) -> Mapping[str, int]:
    """Most bytes of a flat tensor by dtype."""
    found: dict[str, int] = {}
    for group in groups:
        found[group[0]] = max(found.get(group[0], 0), flat_bytes(group))
    return found
