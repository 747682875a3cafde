"""An engine with adapters in a process of its own, for ``ProcessEngine``: no vLLM."""

from typing import Any

import torch
from torch import nn

from tests.lora.adapters_of import values
from wsync_lab.engines.base import Sampling
from wsync_lab.engines.plain import PlainEngine
from wsync_lab.lora.base import base_digest_of
from wsync_lab.weights import ModuleSource

VOCAB, WIDTH = 61, 16
PROMPTS = [[3], [50, 7], [7, 41, 12]]
MODULES = {"q_proj": (WIDTH, WIDTH), "head": (VOCAB, WIDTH)}


class Mixer(nn.Module):
    """Embedding, one projection, head: the next token depends on the last one alone."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        for name, parameter in self.named_parameters():
            parameter.data.copy_(values(name, seed, tuple(parameter.shape), "float32"))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(token_ids)
        logits: torch.Tensor = self.head(hidden + self.q_proj(hidden))
        return logits


class MixerEngine(PlainEngine):
    """What ``ProcessEngine`` can carry: plain values."""

    def __init__(self, adopt: bool = True) -> None:
        super().__init__(Mixer())
        if adopt:
            self.adopt()

    def tokens(self) -> list[tuple[int, list[int]]]:
        """(update_id, greedy tokens) of every prompt."""
        return [(each.update_id, each.token_ids) for each in self.generate(PROMPTS, Sampling(8))]

    def base(self) -> dict[str, Any]:
        """Digest of the base weights that are live."""
        return {"digest": base_digest_of(ModuleSource(self._module))}


def base() -> str:
    """The digest of what ``MixerEngine`` serves."""
    return base_digest_of(ModuleSource(Mixer()))


def greedy(adapter: Any) -> list[list[int]]:
    """What an engine must answer with ``adapter`` (None: without), merged by hand."""
    model = Mixer()
    for path in MODULES if adapter is not None else ():
        if adapter.config.targets(path):
            a, b = (adapter.tensors[f"base_model.model.{path}.lora_{matrix}.weight"] for matrix in "AB")
            model.get_submodule(path).weight.data += adapter.config.scaling_of(path) * (b @ a)
    return [_greedy(model, prompt) for prompt in PROMPTS]


@torch.no_grad()
def _greedy(model: Mixer, prompt: list[int]) -> list[int]:
    token_ids = list(prompt)
    for _ in range(8):
        token_ids.append(int(model(torch.tensor([token_ids]))[0, -1].argmax()))
    return token_ids[len(prompt) :]
