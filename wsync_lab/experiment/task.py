"""The task: answer with tokens below the last token of the prompt. Any rule can check it."""

from collections.abc import Sequence

import torch


def make_prompts(num_prompts: int, prompt_tokens: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random prompts; the last token is at least 1, so that every prompt can be answered."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, vocab_size, (num_prompts, prompt_tokens), generator=generator)
    prompts[:, -1] = torch.randint(1, vocab_size, (num_prompts,), generator=generator)
    return [[int(token) for token in prompt] for prompt in prompts]


def reward(prompt: Sequence[int], completion: Sequence[int]) -> float:
    """Share of the completion's tokens that are below the prompt's last token, from 0 to 1."""
    return sum(token < prompt[-1] for token in completion) / len(completion)
