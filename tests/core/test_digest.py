"""The digest sees every bit, its place, the dtype and the shape."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.core.weights_of import tensor_of
from wsync_lab.digest import tensor_digest
from wsync_lab.weights import TensorMeta


@given(num_bytes=st.integers(1, 70), seed=st.integers(0, 9), data=st.data())
def test_any_flipped_bit_is_seen(num_bytes: int, seed: int, data: st.DataObject) -> None:
    tensor = tensor_of(TensorMeta("w", "uint8", (num_bytes,)), seed)
    before = tensor_digest(tensor)
    tensor[data.draw(st.integers(0, num_bytes - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert tensor_digest(tensor) != before


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn", "int64"])
@pytest.mark.parametrize("distance", [1, 4, 1 << 15, 1 << 20])
def test_swapped_elements_are_seen(dtype: str, distance: int) -> None:
    tensor = tensor_of(TensorMeta("w", dtype, (distance + 1,)), seed=2)
    index = torch.arange(distance + 1)
    index[0], index[distance] = distance, 0
    as_integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    swapped = tensor.view(as_integers)[index].view(tensor.dtype)
    assert not torch.equal(swapped.view(torch.uint8), tensor.view(torch.uint8))
    assert tensor_digest(swapped) != tensor_digest(tensor)


def test_dtype_and_shape_count() -> None:
    tensor = tensor_of(TensorMeta("w", "float32", (6, 4)), seed=3)
    others = [tensor.view(4, 6), tensor.view(-1), tensor.view(torch.int32), tensor.view(torch.bfloat16)]
    assert len({tensor_digest(t) for t in [tensor, *others]}) == 5


def test_bytes_are_compared_not_values() -> None:
    assert tensor_digest(torch.tensor([0.0])) != tensor_digest(torch.tensor([-0.0]))
    nan = torch.tensor([float("nan")])
    assert tensor_digest(nan) == tensor_digest(nan.clone())


def test_strides_and_place_in_memory_do_not_count() -> None:
    base = tensor_of(TensorMeta("w", "uint8", (1000,)), seed=4)
    assert tensor_digest(base[3:903]) == tensor_digest(base[3:903].clone())
    square = base[:900].view(30, 30)
    assert tensor_digest(square.t()) == tensor_digest(square.t().contiguous())


def test_chunks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = tensor_of(TensorMeta("w", "float16", (4099,)), seed=5)
    whole = tensor_digest(tensor)
    monkeypatch.setattr("wsync_lab.digest._TEMPORARY_WORDS", 100)
    assert tensor_digest(tensor) == whole


@pytest.mark.parametrize("shape", [(0,), (0, 4), ()])
def test_empty_and_scalar_tensors_have_digests(shape: tuple[int, ...]) -> None:
    assert tensor_digest(torch.zeros(shape)) == tensor_digest(torch.zeros(shape))
