"""What a run may be asked for, where its roles sit, and what its task rewards."""

from typing import Any

import pytest

from wsync_lab.errors import ConfigError
from wsync_lab.experiment import ExperimentConfig
from wsync_lab.experiment.placement import Placement
from wsync_lab.experiment.task import make_prompts, reward


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"transports": ("cpu", "rdma")}, "rdma"),
        ({"transports": ()}, "transports is empty"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": 100}, "give a multiple of 64"),
        ({"slot_bytes": -1}, "slot_bytes"),
        ({"num_slots": 0}, "num_slots"),
        ({"deadline_s": -2.0}, "deadline_s"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"engine": "sglang"}, "choose one of vllm, plain"),
        ({"dtype": "float8"}, "choose one of float32, bfloat16"),
        ({"verify": "maybe"}, "verify"),
        ({"samples_per_prompt": 1}, "samples_per_prompt is 1"),
        ({"lora_rank": -1}, "lora_rank is -1"),
        ({"lora_rank": 8, "lora_targets": ()}, "lora_rank is 8"),
        ({"megatron_tp": 2, "megatron_pp": 2}, "give all three"),
        ({"megatron_tp": 2, "lora_rank": 8}, "give all three"),
        ({"megatron_tp": 3, "megatron_pp": 1, "lora_rank": 8}, "give a multiple of num_pairs, 2"),
        ({"prompts_per_step": 7}, "give a multiple of num_pairs, 2"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExperimentConfig(**wrong)


def test_the_placement_of_the_issue() -> None:
    placement = Placement(num_pairs=2, num_gpus=3)
    assert placement.roles == [["trainer:0", "engine:0"], ["trainer:1", "engine:1"], ["reference", "reward"]]
    assert not placement.emulated
    assert [bundle["GPU"] for bundle in placement.bundles()] == [1.0, 1.0, 1.0]
    assert placement.actor_options()["num_gpus"] == 0.5


def test_more_trainer_ranks_than_pairs_share_the_slots() -> None:
    placement = Placement(num_pairs=2, num_gpus=3, trainers_per_pair=2)
    assert placement.roles[1] == ["trainer:2", "trainer:3", "engine:1"]
    assert placement.actor_options()["num_gpus"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("num_gpus", [0, 2])
def test_with_fewer_gpus_than_slots_the_placement_is_emulated(num_gpus: int) -> None:
    placement = Placement(num_pairs=2, num_gpus=num_gpus)
    assert placement.emulated
    assert all("GPU" not in bundle for bundle in placement.bundles())
    assert placement.actor_options()["num_gpus"] == 0


def test_the_reward_is_the_share_of_tokens_below_the_prompts_last() -> None:
    assert reward([50, 3, 10], [9, 10, 0, 63]) == 0.5


def test_prompts_depend_on_their_seed_and_can_all_be_answered() -> None:
    prompts = make_prompts(300, 4, 64, seed=1)
    assert prompts == make_prompts(300, 4, 64, seed=1)
    assert prompts != make_prompts(300, 4, 64, seed=2)
    assert all(len(prompt) == 4 and prompt[-1] >= 1 for prompt in prompts)
    assert {token for prompt in prompts for token in prompt} == set(range(64))
