"""Made-up step records: their model is called ``made-up`` and their times come from a seed."""

import random
from typing import Any

from wsync_lab.records import PHASES, SYNC_PHASES, Record

_SECONDS = {
    "rollout": 1.6,
    "reward": 0.05,
    "reference": 0.4,
    "train": 1.1,
    "pause_resume": 0.02,
    "other": 0.03,
}
_SYNC_SECONDS = {
    "cpu": {"gather": 0.05, "pack": 0.06, "transfer": 0.62, "apply": 0.2, "commit": 0.01},
    "pinned": {"gather": 0.05, "pack": 0.03, "transfer": 0.01, "apply": 0.12, "commit": 0.01},
    "cuda_vmm": {"gather": 0.05, "pack": 0.02, "transfer": 0.01, "apply": 0.1, "commit": 0.01},
}
_SLOT_MEMORY = {"cpu": "pageable", "pinned": "memfd", "cuda_vmm": "memfd"}
_PROVENANCE = {
    "date": "2026-01-02T03:04:05Z",
    "commit": "0" * 40,
    "dirty": False,
    "cpu": "2 x made-up",
    **dict.fromkeys(("gpu", "driver", "cuda", "nccl", "expandable_segments")),
    **dict.fromkeys(("torch", "vllm", "ray", "python", "kernel"), "0.0"),
    "seccomp_mode": 0,
    "pidfd_getfd": "ok",
    "emulated_placement": True,
}


def step_record(transport: str, *, num_steps: int = 6, seed: int = 0, error: str | None = None) -> Record:
    """One valid record; with ``error``, of a run that failed after ``num_steps`` steps."""
    draw = random.Random(f"{transport}{seed}")
    return {
        "schema_version": 1,
        "kind": "step",
        "run_id": f"20260102T030405-{seed:04x}",
        "status": "failed" if error else "ok",
        "error": error,
        "config": _config(transport, num_steps),
        "provenance": dict(_PROVENANCE),
        "init_time_s": 1.0,
        "attach_time_s": 0.5,
        "steps": [_step(transport, number, draw) for number in range(1, num_steps + 1)],
    }


def _config(transport: str, num_steps: int) -> dict[str, Any]:
    return {
        "transport": transport,
        "slot_memory": _SLOT_MEMORY[transport],
        "collective": None,
        "placement": [["trainer:0", "engine:0"], ["trainer:1", "engine:1"], ["reference", "reward"]],
        "model": "made-up",
        "dtype": "float32",
        "slot_bytes": 1 << 20,
        "num_slots": 2,
        "payload_bytes": 3_200_000,
        "engine": "plain",
        "num_steps": num_steps,
    }


def _step(transport: str, number: int, draw: random.Random) -> dict[str, Any]:
    slow = 3.0 if number == 1 else 1.0
    sync = {name: _SYNC_SECONDS[transport][name] * draw.uniform(0.9, 1.1) for name in SYNC_PHASES}
    phases = {name: _SECONDS[name] * slow * draw.uniform(0.9, 1.1) for name in _SECONDS}
    phases = {name: {**phases, "sync": sum(sync.values())}[name] for name in PHASES}
    return {
        "step": number,
        "weight_version": number + 1,
        "wall_s": sum(phases.values()),
        "phase_times_s": phases,
        "sync_phase_times_s": sync,
        "sync_time_s": sum(sync.values()),
        "pause_s": phases["pause_resume"] / 2,
        "resume_s": phases["pause_resume"] / 2,
        "reward_mean": 0.1 + 0.02 * number + draw.uniform(0, 0.02),
        "logprob_gap": 10 ** draw.uniform(-7, -6.3),
        "kl_k3": 10 ** draw.uniform(-13, -12),
    }
