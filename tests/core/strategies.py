"""Hypothesis strategies for state dicts: any names, dtypes and small shapes."""

from hypothesis import strategies as st

from wsync_lab.weights import TensorMeta

DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "uint8",
    "int64",
    "bool",
)

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@st.composite
def state_dicts(draw: st.DrawFn, max_tensors: int = 12) -> list[TensorMeta]:
    unique = draw(st.lists(names, max_size=max_tensors, unique=True))
    return [TensorMeta(name, draw(st.sampled_from(DTYPES)), draw(shapes)) for name in unique]


def payload_bytes(metadata: list[TensorMeta]) -> int:
    return sum(meta.num_bytes for meta in metadata)


def slot_sizes(metadata: list[TensorMeta]) -> st.SearchStrategy[int]:
    """From one byte to three times the payload."""
    return st.integers(1, 3 * payload_bytes(metadata) + 1)
