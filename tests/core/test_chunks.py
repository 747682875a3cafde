"""Chunks cover every word of every tensor once."""

from hypothesis import given
from hypothesis import strategies as st

from wsync_lab.chunks import CHUNK_WORDS, chunk_rows

sizes = st.one_of(st.integers(0, 3 * CHUNK_WORDS), st.sampled_from([CHUNK_WORDS, CHUNK_WORDS + 1]))


@given(st.lists(sizes, min_size=1, max_size=6))
def test_chunks_follow_one_another_without_a_gap(num_words: list[int]) -> None:
    index, first, words = (column.tolist() for column in chunk_rows(num_words))
    covered = [0] * len(num_words)
    for tensor, start, length in zip(index, first, words, strict=True):
        assert start == covered[tensor]
        assert 0 < length <= CHUNK_WORDS
        covered[tensor] += length
    assert covered == num_words
