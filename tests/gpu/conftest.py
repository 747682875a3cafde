"""Tests of this folder need a CUDA device, and say so where there is none."""

import pytest
import torch


@pytest.fixture(autouse=True)
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())
