"""Processes that would work for the command from outside the sandbox, unrestricted."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from wsync_lab.errors import ConfigError


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Raise ``ConfigError`` where a Ray cluster or a CUDA MPS daemon from outside would be used."""
    if address := environment.get("RAY_ADDRESS"):
        raise ConfigError(
            f"RAY_ADDRESS is {address}: workers of that cluster are outside the sandbox; unset it, "
            "so that Ray starts inside"
        )
    pipe = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", Path(tempfile.gettempdir()) / "nvidia-mps"))
    if (pipe / "control").exists():
        raise ConfigError(
            f"a CUDA MPS daemon listens in {pipe}: it is outside the sandbox; end it (echo quit | "
            "nvidia-cuda-mps-control), and start one inside if you need it"
        )
