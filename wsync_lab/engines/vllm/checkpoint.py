"""Which weights a vLLM model takes, by their checkpoint names, without touching the model."""

import copy

import torch
import transformers
from vllm.config import ModelConfig

from wsync_lab.engines.manifest import ExpectedWeights
from wsync_lab.errors import ConfigError


def expected_weights(model_config: ModelConfig) -> ExpectedWeights:
    """Names, shapes, dtypes and ties of the Hugging Face model, built on the meta device.

    vLLM's own parameters do not tell: it fuses projections, and loaders skip what they do not
    know.

    Raises:
        ConfigError: Transformers has no class for this architecture.
    """
    architecture = model_config.hf_config.architectures[0]
    model_class = getattr(transformers, architecture, None)
    if model_class is None:
        raise ConfigError(
            f"Transformers has no {architecture}: its weights cannot be checked before an update"
        )
    config = copy.deepcopy(model_config.hf_config)
    config.dtype = model_config.dtype
    with torch.device("meta"):
        return ExpectedWeights.of(model_class._from_config(config))
