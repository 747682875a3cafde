"""The correctness experiment sees what it is made to see."""

from pathlib import Path

import pytest
import torch

from wsync_lab import records
from wsync_lab.bench import correctness
from wsync_lab.bench.consumer import TensorEngine
from wsync_lab.bench.layouts import LAYOUT_NAMES, LayoutSource
from wsync_lab.errors import ConfigError
from wsync_lab.packing import as_bytes
from wsync_lab.plots.correctness import outcome_map
from wsync_lab.reports.correctness import correctness_verdict, outcome_table
from wsync_lab.tables.correctness import outcomes


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_a_layout_is_the_same_for_a_seed_and_another_for_the_next(layout: str) -> None:
    source = LayoutSource(layout, seed=1)
    first, again = list(source), list(source)
    assert [name for name, _ in first] == [meta.name for meta in source.metadata()]
    assert all(torch.equal(as_bytes(a), as_bytes(b)) for (_, a), (_, b) in zip(first, again, strict=True))
    source.seed = 2
    assert any(
        not torch.equal(as_bytes(a), as_bytes(b)) for (_, a), (_, b) in zip(first, source, strict=True)
    )


def test_layouts_are_what_their_names_say() -> None:
    assert any(not tensor.is_contiguous() for _, tensor in LayoutSource("strided", 0))
    assert any(tensor.isnan().any() for _, tensor in LayoutSource("special values", 0))
    assert len({tensor.dtype for _, tensor in LayoutSource("mixed dtypes", 0)}) == 7
    tied = LayoutSource("tied", 0)
    (alias, name), *_ = tied.aliases().items()
    assert name in dict(tied) and alias not in dict(tied)


def run(path: Path, *transports: str) -> list[records.Record]:
    return correctness.run_correctness(transports, ["odd sizes", "strided"], 4096, 3, path)


def test_transports_that_run_are_equal_and_the_others_say_why(tmp_path: Path) -> None:
    made = run(tmp_path / "a.jsonl", "pinned", "cuda_ipc")
    assert len(records.read(tmp_path / "a.jsonl")) == 4
    table = outcomes(made)
    assert list(table.loc["pinned (memfd)"]) == ["equal", "equal"]
    assert list(table.loc["cuda_ipc"]) == ["not available", "not available"]
    verdict = correctness_verdict(made)
    assert verdict.ok
    assert "2 combinations" in verdict.headline
    assert "needs a GPU" in " ".join(verdict.details)
    assert "equal" in outcome_table(made)
    assert "2 of the 2" in outcome_map(table).finding


class ForgetfulEngine(TensorEngine):
    """Reports other bytes for one tensor."""

    def stored_bytes(self) -> dict[str, bytes]:
        stored = super().stored_bytes()
        name = next(iter(stored))
        return stored | {name: stored[name] + b"\0"}


def test_one_other_byte_is_a_verdict_against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "TensorEngine", ForgetfulEngine)
    made = run(tmp_path / "a.jsonl", "pinned")
    assert [record["num_mismatched"] for record in made] == [3, 3]
    verdict = correctness_verdict(made)
    assert not verdict.ok
    assert "pinned with odd sizes" in verdict.headline


class UntiedEngine(TensorEngine):
    """Its tied name has zeros of its own, which no update reaches."""

    def stored_bytes(self) -> dict[str, bytes]:
        stored = super().stored_bytes()
        return stored | {"lm_head.weight": bytes(len(stored["lm_head.weight"]))}


def test_a_tie_that_came_apart_is_a_verdict_against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tied,) = correctness.run_correctness(["pinned"], ["tied"], 4096, 3, tmp_path / "a.jsonl")
    assert (tied["status"], tied["num_mismatched"]) == ("ok", 0)
    monkeypatch.setattr(correctness, "TensorEngine", UntiedEngine)
    (untied,) = correctness.run_correctness(["pinned"], ["tied"], 4096, 3, tmp_path / "a.jsonl")
    assert untied["num_mismatched"] == 3
    assert not correctness_verdict([untied]).ok


def test_unknown_names_are_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(ConfigError, match="unknown layout 'round'"):
        correctness.run_correctness(["pinned"], ["round"], 4096, 0, path)
    with pytest.raises(ConfigError, match="unknown transport 'rdma'"):
        correctness.run_correctness(["rdma"], ["strided"], 4096, 0, path)
    assert not path.exists()
