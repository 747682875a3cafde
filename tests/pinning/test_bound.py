"""No flat tensor exceeds the bound, and some reach it: by replay of the bucketing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsync_lab.errors import ConfigError
from wsync_lab.pinning.bound import buckets, flat_bytes, largest, staging_bytes
from wsync_lab.weights import TensorMeta

DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn")
state_dicts = st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 40)), max_size=30).map(
    lambda drawn: [TensorMeta(f"w.{i}", dtype, (size,)) for i, (dtype, size) in enumerate(drawn)]
)


@settings(max_examples=1000)
@given(state_dicts, st.integers(1, 200))
def test_no_flat_tensor_exceeds_the_bound(tensors: list[TensorMeta], bucket_bytes: int) -> None:
    bound = staging_bytes(tensors, bucket_bytes)
    made = list(buckets(tensors, bucket_bytes))
    for groups in made:
        for group in groups:
            assert flat_bytes(group) <= bound[group[0]]
    assert [meta for groups in made for _, group in groups for meta in group] == [
        meta
        for groups in made
        for dtype in dict.fromkeys(dtype for dtype, _ in groups)
        for meta in dict(groups)[dtype]
    ]
    assert sorted(meta.name for groups in made for _, group in groups for meta in group) == sorted(
        meta.name for meta in tensors
    )


@pytest.mark.parametrize(
    ("sizes", "bucket_bytes", "bound"),
    [
        ([10, 10], 100, 20),  # all bytes of the dtype
        ([60, 40, 30], 100, 100),  # a full bucket
        ([30, 150, 30], 100, 150),  # one larger parameter
        ([100], 100, 100),
        ([1] * 7, 3, 3),
    ],
)
def test_the_bound_is_reached(sizes: list[int], bucket_bytes: int, bound: int) -> None:
    """So that one byte less would be too small."""
    tensors = [TensorMeta(f"w.{i}", "uint8", (size,)) for i, size in enumerate(sizes)]
    assert staging_bytes(tensors, bucket_bytes) == {"uint8": bound}
    reached = largest(group for groups in buckets(tensors, bucket_bytes) for group in groups)
    assert reached == {"uint8": bound}


def test_dtypes_in_one_bucket_are_flat_tensors_of_their_own() -> None:
    tensors = [
        TensorMeta("a", "bfloat16", (3,)),
        TensorMeta("b", "float32", (2,)),
        TensorMeta("c", "bfloat16", (1,)),
    ]
    ((bf16, fp32),) = buckets(tensors, 100)
    assert (bf16, fp32) == (("bfloat16", [tensors[0], tensors[2]]), ("float32", [tensors[1]]))


def test_a_bucket_of_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="bucket_bytes is 0"):
        list(buckets([], 0))
