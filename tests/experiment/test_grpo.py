"""The loss and the measures of agreement, against the formulas in NumPy."""

import numpy as np
import pytest
import torch

from wsync_lab.experiment.grpo import group_advantages, grpo_loss, k3


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_advantages_are_standardised_within_each_group() -> None:
    rewards = random(3, 8, seed=1)
    values = rewards.numpy()
    centred = values - values.mean(axis=1, keepdims=True)
    expected = centred / (values.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(group_advantages(rewards).numpy(), expected, rtol=1e-12)


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    assert group_advantages(torch.full((2, 4), 0.625)).abs().max() == 0


def test_k3_is_zero_for_equal_distributions_and_never_negative() -> None:
    one, other = random(100, seed=2), random(100, seed=3)
    assert k3(one, one).abs().max() == 0
    assert (k3(one, other) >= 0).all()


def test_k3_estimates_the_kl_divergence() -> None:
    p, q = random(50, seed=4).log_softmax(0), random(50, seed=5).log_softmax(0)
    exact = (p.exp() * (p - q)).sum()
    assert torch.isclose((p.exp() * k3(p, q)).sum(), exact)


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.3])
def test_the_loss_is_the_clipped_objective_with_its_penalty(kl_coefficient: float) -> None:
    logprobs, behaviour, reference = (random(6, 5, seed=seed) for seed in (6, 7, 8))
    advantages = random(6, seed=9)
    ratio = np.exp((logprobs - behaviour).numpy())
    gain = advantages.numpy()[:, None]
    surrogate = np.minimum(ratio * gain, np.clip(ratio, 0.8, 1.2) * gain)
    difference = (reference - logprobs).numpy()
    expected = -(surrogate - kl_coefficient * (np.exp(difference) - 1 - difference)).mean()
    loss = grpo_loss(logprobs, behaviour, reference, advantages, 0.2, kl_coefficient)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)


def test_a_rewarded_sample_becomes_more_likely() -> None:
    logprobs = random(2, 5, seed=10).requires_grad_()
    before = logprobs.detach()
    grpo_loss(logprobs, before, before, torch.tensor([1.0, -1.0]), 0.2, 0.1).backward()
    assert logprobs.grad is not None
    assert (logprobs.grad[0] < 0).all()
    assert (logprobs.grad[1] > 0).all()
