"""A language model of two matrices, for tests of what engines do around a model."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from wsync_lab.weights import ModuleSource

VOCAB, WIDTH = 97, 31


class Bigram(nn.Module):
    """The next token depends on the last one alone."""

    def __init__(self, seed: int, *, tied: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.embed(token_ids))
        return logits


def greedy(model: Bigram, prompt: list[int], max_tokens: int) -> list[int]:
    """What an engine that holds exactly ``model`` answers."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(int(model(torch.tensor([token_ids]))[0, -1].argmax()))
    return token_ids[len(prompt) :]


class InterruptedSource(ModuleSource):
    """Calls ``interrupt`` before its last tensor."""

    interrupt: Callable[[], None] = staticmethod(lambda: None)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        named = list(super().__iter__())
        yield from named[:-1]
        self.interrupt()
        yield named[-1]
