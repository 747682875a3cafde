"""A weight source lists what it will send, without a gather, and sends exactly that."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.core.ports import free_port
from wsync_lab.errors import ConfigError
from wsync_lab.packing import as_bytes
from wsync_lab.weights import ModuleSource, TensorMeta, canonical_name


class TiedModel(nn.Module):
    """Embedding, one odd-sized layer, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.embed = nn.Embedding(13, 6)
        self.layer = nn.Linear(6, 5)
        self.head = nn.Linear(6, 13, bias=False)
        self.head.weight = self.embed.weight


EXPECTED = [
    TensorMeta("embed.weight", "float32", (13, 6)),
    TensorMeta("layer.weight", "float32", (5, 6)),
    TensorMeta("layer.bias", "float32", (5,)),
]


def test_a_tied_parameter_is_sent_once_and_its_other_name_is_an_alias() -> None:
    source = ModuleSource(TiedModel())
    assert list(source.metadata()) == EXPECTED
    assert source.aliases() == {"head.weight": "embed.weight"}
    assert [TensorMeta.of(name, tensor) for name, tensor in source] == EXPECTED


def test_every_pass_is_fresh_and_detached() -> None:
    model = TiedModel()
    source = ModuleSource(model)
    before = dict(source)["layer.bias"].clone()
    with torch.no_grad():
        model.layer.bias.add_(1)
    after = dict(source)["layer.bias"]
    assert torch.equal(after, before + 1) and not after.requires_grad


def test_wrappers_do_not_change_names() -> None:
    assert canonical_name("_orig_mod.a._checkpoint_wrapped_module.b") == "a.b"
    model = torch.compile(TiedModel())
    assert isinstance(model, nn.Module)
    assert list(ModuleSource(model).metadata()) == EXPECTED


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(ConfigError, match="no dtype 'load'"):
        _ = TensorMeta("w", "load", (1,)).num_bytes


def gather_as_rank(rank: int, port: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = TiedModel()
    fully_shard(model.layer)
    fully_shard(model)
    source = ModuleSource(model)
    with dist_forbidden():
        metadata, aliases = source.metadata(), source.aliases()
    gathered = {name: as_bytes(tensor).numpy().tobytes() for name, tensor in source}
    torch.save((list(metadata), aliases, gathered), Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


class dist_forbidden:  # noqa: N801
    """Any gather inside fails: metadata must not need one."""

    def __enter__(self) -> None:
        from torch.distributed.tensor import DTensor

        self._full_tensor = DTensor.full_tensor
        DTensor.full_tensor = None  # type: ignore[assignment,method-assign]

    def __exit__(self, *_: object) -> None:
        from torch.distributed.tensor import DTensor

        DTensor.full_tensor = self._full_tensor  # type: ignore[method-assign]


def test_fsdp2_ranks_send_the_unsharded_bytes_in_one_order(tmp_path: Path) -> None:
    mp.spawn(gather_as_rank, (free_port(), str(tmp_path)), nprocs=2)
    whole = {name: as_bytes(tensor).numpy().tobytes() for name, tensor in ModuleSource(TiedModel())}
    for rank in range(2):
        metadata, aliases, gathered = torch.load(tmp_path / f"rank{rank}.pt", weights_only=False)
        assert metadata == EXPECTED
        assert aliases == {"head.weight": "embed.weight"}
        assert list(gathered) == [meta.name for meta in EXPECTED]
        assert gathered == whole
