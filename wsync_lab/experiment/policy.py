"""The policy on the trainer's side: built from a seed, sharded, scored on sampled tokens."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from wsync_lab.engines.tiny import build_tiny_qwen2
from wsync_lab.experiment.config import ExperimentConfig


def build_policy(config: ExperimentConfig) -> nn.Module:
    """The initial policy: the same weights in every process."""
    return build_tiny_qwen2(
        tied=config.tied_embeddings,
        dtype=config.dtype,
        seed=config.seed,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=2 * config.hidden_size,
        num_layers=config.num_layers,
    )


def shard_policy(policy: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP2: one group a decoder layer, the rest, tied embeddings included, in the root's."""
    for layer in policy.model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    return policy


def completion_logprobs(policy: nn.Module, tokens: torch.Tensor, prompt_tokens: int) -> torch.Tensor:
    """Log-probabilities, float32, of each row's tokens after its prompt.

    Args:
        tokens: (samples, prompt + completion) token ids, prompts of one length.

    Returns:
        (samples, completion).
    """
    logits: torch.Tensor = policy(tokens[:, :-1]).logits
    logprobs = logits[:, prompt_tokens - 1 :].float().log_softmax(dim=-1)
    return logprobs.gather(-1, tokens[:, prompt_tokens:, None]).squeeze(-1)
