"""Work on many tensors in one kernel launch: each is cut into chunks, one a thread block."""

import torch

WORD_BYTES = 8
CHUNK_WORDS = 8192  # 64 KiB: large enough to hide a block's start, small enough to balance


def chunk_rows(num_words: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cut tensors of so many 8-byte words into chunks.

    Returns:
        Three int64 tensors with an element a chunk: the tensor's index, the chunk's first word
        in it, and the chunk's length in words.
    """
    words = torch.tensor(num_words, dtype=torch.int64)
    counts = (words + CHUNK_WORDS - 1) // CHUNK_WORDS
    index = torch.repeat_interleave(torch.arange(len(words)), counts)
    before = torch.cumsum(counts, 0) - counts
    first = (torch.arange(len(index)) - before[index]) * CHUNK_WORDS
    return index, first, torch.clamp(words[index] - first, max=CHUNK_WORDS)
