"""Group-relative policy optimisation, and the measures of the engine's agreement.

Advantages and loss: Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1. The k3 estimator:
J. Schulman, Approximating KL divergence, 2020.
"""

import torch

_EPSILON = 1e-6


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards (groups, samples), each less its group's mean, over its group's deviation."""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + _EPSILON)


def k3(logprobs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Elementwise k3 estimate of KL(p, q), ``logprobs`` under p, of which the tokens are samples,
    and ``other`` under q: exp(d) - 1 - d with d = other - logprobs. Never negative."""
    difference = other - logprobs
    return difference.exp() - 1 - difference


def grpo_loss(
    logprobs: torch.Tensor,
    behaviour: torch.Tensor,
    reference: torch.Tensor,
    advantages: torch.Tensor,
    clip: float,
    kl_coefficient: float,
) -> torch.Tensor:
    """Clipped policy gradient with a KL penalty, averaged over tokens.

    Args:
        logprobs, behaviour, reference: (samples, tokens) under the trained policy, under the
            engine that sampled, and under the frozen reference.
        advantages: (samples,).
    """
    ratio = (logprobs - behaviour).exp()
    gain = advantages[:, None]
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    return -(surrogate - kl_coefficient * k3(logprobs, reference)).mean()
