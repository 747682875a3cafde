"""How a plain engine's parameters take new bytes."""

import torch
from torch import nn

from wsync_lab.engines.plain import applier_of
from wsync_lab.packing import as_bytes


def test_a_strided_parameter_is_written_through_its_view() -> None:
    module = nn.Module()
    storage = torch.zeros(6, 8)
    module.weight = nn.Parameter(storage.t()[::2])
    generator = torch.Generator().manual_seed(1)
    sent = torch.randn(4, 6, generator=generator)
    applier_of(module).load([("weight", sent)])
    assert torch.equal(as_bytes(module.weight), as_bytes(sent))
    assert torch.equal(storage.t()[::2], sent)
    assert storage.t()[1::2].abs().max() == 0


def test_what_was_loaded_does_not_change_with_the_slot() -> None:
    module = nn.Linear(3, 2, bias=False)
    slot = torch.arange(24, dtype=torch.uint8)
    sent = slot.view(torch.float32).view(2, 3)
    before = as_bytes(sent).clone()
    applier_of(module).load([("weight", sent)])
    slot.fill_(0xA5)
    assert torch.equal(as_bytes(module.weight), before)
