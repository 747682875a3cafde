"""Faults of offered weights: all of them, before anything is touched."""

import torch

from tests.engines.bigram import VOCAB, WIDTH, Bigram
from wsync_lab.engines.manifest import ExpectedWeights
from wsync_lab.weights import ModuleSource, TensorMeta

SHAPE = (VOCAB, WIDTH)
EMBED, HEAD = TensorMeta("embed.weight", "float32", SHAPE), TensorMeta("head.weight", "float32", SHAPE)
TIED = ExpectedWeights.of(Bigram(seed=0, tied=True))
UNTIED = ExpectedWeights.of(Bigram(seed=0))


def test_weights_of_the_same_module_fit() -> None:
    for tied, expected in ((True, TIED), (False, UNTIED)):
        source = ModuleSource(Bigram(seed=1, tied=tied))
        assert expected.faults(source.metadata(), source.aliases()) == []


def test_a_module_on_the_meta_device_tells_the_same() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(3, 5)
    assert ExpectedWeights.of(model) == ExpectedWeights.of(torch.nn.Linear(3, 5))


def test_every_fault_is_listed() -> None:
    offered = [TensorMeta("embed.weight", "bfloat16", SHAPE), TensorMeta("extra", "float32", (2,))]
    assert UNTIED.faults(offered, {}) == [
        f"embed.weight bfloat16[{VOCAB}, {WIDTH}] is sent where the engine takes float32[{VOCAB}, {WIDTH}]",
        "extra is unknown to the engine",
        "head.weight is missing",
    ]


def test_a_shape_of_the_same_size_is_a_fault() -> None:
    turned = TensorMeta("embed.weight", "float32", (WIDTH, VOCAB))
    assert len(UNTIED.faults([turned, HEAD], {})) == 1


def test_ties_of_trainer_and_engine_must_agree() -> None:
    assert TIED.faults([EMBED, HEAD], {}) == [
        "head.weight is sent, but the engine ties it to embed.weight: tie it in the trainer"
    ]
    assert UNTIED.faults([EMBED], {"head.weight": "embed.weight"}) == [
        "head.weight is tied to embed.weight in the trainer, not in the engine: untie it or tie both"
    ]
    assert TIED.faults([EMBED], {"tail.weight": "embed.weight"}) == [
        "tail.weight is tied to embed.weight in the trainer, to nothing in the engine"
    ]


def test_ties_that_a_checkpoint_does_not_mention_are_no_fault() -> None:
    assert TIED.faults([EMBED], {}) == []
