"""Tables say what the records say: every step once, failures included, no stand-in in disguise."""

import math

import pytest

from tests.reports.made_records import step_record
from wsync_lab.records import PHASES, SYNC_PHASES
from wsync_lab.tables import markdown, steps
from wsync_lab.tables.labels import transport_label


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"transport": "cpu", "slot_memory": "pageable"}, "cpu"),
        ({"transport": "pinned", "slot_memory": "memfd"}, "pinned (memfd)"),
        ({"transport": "pinned", "slot_memory": "registered_memfd"}, "pinned"),
        ({"transport": "cuda_vmm", "slot_memory": "memfd"}, "memfd for cuda_vmm"),
        ({"transport": "cuda_vmm", "slot_memory": "cuda_vmm"}, "cuda_vmm"),
        ({"transport": "nccl", "slot_memory": "pageable", "collective": "gloo"}, "gloo for nccl"),
        ({"transport": "nccl", "collective": "nccl"}, "nccl"),
        ({"transport": "cuda_ipc"}, "unknown for cuda_ipc"),
    ],
)
def test_a_label_names_what_carried_the_bytes(config: dict, label: str) -> None:
    assert transport_label(config) == label


def test_every_step_is_one_row_with_its_numbers() -> None:
    record = step_record("pinned", num_steps=4)
    table = steps.steps([step_record("cpu", num_steps=3), record])
    assert len(table) == 7
    row, step = table.iloc[5], record["steps"][2]
    assert row["sync_share"] == step["phase_times_s"]["sync"] / step["wall_s"]
    assert [row[f"phase_{name}_s"] for name in PHASES] == [step["phase_times_s"][name] for name in PHASES]
    assert [row[f"sync_{name}_s"] for name in SYNC_PHASES] == list(step["sync_phase_times_s"].values())


def test_phase_means_add_up_to_the_mean_step_without_the_first() -> None:
    record = step_record("cpu", num_steps=5)
    means = steps.phase_means(steps.steps([record]))
    expected = sum(step["wall_s"] for step in record["steps"][1:]) / 4
    assert math.isclose(sum(means.loc["cpu"]), expected)
    synced = sum(step["sync_time_s"] for step in record["steps"][1:]) / 4
    assert math.isclose(sum(steps.sync_phase_means(steps.steps([record])).loc["cpu"]), synced)


def test_a_run_of_one_step_is_averaged_over_that_step() -> None:
    record = step_record("cpu", num_steps=1)
    means = steps.phase_means(steps.steps([record]))
    assert math.isclose(sum(means.loc["cpu"]), record["steps"][0]["wall_s"])


@pytest.mark.parametrize("done", [0, 2])
def test_a_failed_run_is_a_row_with_its_error(done: int) -> None:
    error = "PeerLost: worker 1 | gone\nin bucket 3"
    table = steps.summary([step_record("cpu"), step_record("pinned", num_steps=done, error=error)])
    text = markdown.step_summary(table)
    assert list(table["steps"]) == [6, done]
    assert "failed: `PeerLost: worker 1 \\| gone in bucket 3`" in text.splitlines()[3]


def test_steps_of_a_failed_run_stay_apart_from_those_of_a_good_one() -> None:
    table = steps.steps([step_record("pinned"), step_record("pinned", seed=1, num_steps=2, error="gone")])
    assert list(steps.phase_means(table).index) == ["pinned (memfd)", "pinned (memfd), failed"]


def test_the_summary_computes_rate_and_share_from_the_record() -> None:
    record = step_record("cpu", num_steps=3)
    warm = record["steps"][1:]
    row = steps.summary([record]).iloc[0]
    sync_s = sum(step["sync_time_s"] for step in warm) / 2
    assert math.isclose(row["sync_GBps"], record["config"]["payload_bytes"] / sync_s / 1e9)
    assert math.isclose(row["sync_share"], 2 * sync_s / sum(step["wall_s"] for step in warm))


def test_markdown_is_padded_and_aligns_numbers_to_the_right() -> None:
    text = markdown.markdown_table({"name": ["a", "b|c"], "n": ["1.5", "–"]})
    assert text.splitlines() == ["| name |   n |", "| ---- | --: |", "| a    | 1.5 |", "| b\\|c |   – |"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(605.9, "606"), (12.345, "12.3"), (1.0, "1.00"), (0.2178, "0.218"), (0.0034, "0.0034"), (0.0, "0.000"),
     (math.nan, "–"), (29000.0, "29000"), (4.2e-7, "4.20e-07")],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert markdown.significant(value) == text
