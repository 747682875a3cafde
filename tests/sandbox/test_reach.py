"""The filter of ``managed`` reaches Ray's workers and vLLM's processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tooling.imports import ROOT
from wsync_lab.engines.tiny import build_tiny_qwen2, save_model

RAY = """
import logging, ray
from wsync_lab.provenance import try_pidfd_getfd
quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL, "include_dashboard": False}
ray.init(num_cpus=1, address="local", **quiet)
print("PIDFD_GETFD", ray.get(ray.remote(try_pidfd_getfd).remote(), timeout=60))
"""
VLLM = """
import psutil, sys
from pathlib import Path
from wsync_lab.engines.vllm.engine import VllmEngine, VllmOptions
if __name__ == "__main__":
    engine = VllmEngine(VllmOptions(sys.argv[1], "float32", max_model_len=64, kv_cache_bytes=16 << 20))
    for process in psutil.Process().children(recursive=True):
        status = Path(f"/proc/{process.pid}/status").read_text()
        mode = next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:"))
        print("PROCESS", process.name(), mode)
    engine.close()
"""


def sandboxed(program: Path, *arguments: str) -> list[list[str]]:
    """The words of each line that ``program`` printed under ``managed``."""
    command = [sys.executable, "-m", "wsync_lab.cli", "sandbox", "--profile", "managed", "--"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [*command, sys.executable, str(program), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=200,
    )
    return [line.split() for line in process.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_ray_worker_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(RAY)
    assert ["PIDFD_GETFD", "EPERM"] in sandboxed(tmp_path / "ask.py")


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_vllms_processes_are_filtered_too(tmp_path: Path) -> None:
    folder = save_model(build_tiny_qwen2(tied=True, dtype="float32", seed=0), tmp_path / "model")
    (tmp_path / "ask.py").write_text(VLLM)
    processes = [line[1:] for line in sandboxed(tmp_path / "ask.py", str(folder)) if line[:1] == ["PROCESS"]]
    assert any("Worker" in name for name, _ in processes)
    assert {mode for _, mode in processes} == {"2"}
