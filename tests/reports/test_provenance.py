"""Provenance: complete, quick, strict JSON, and honest about what the kernel permits."""

import errno
import json
import subprocess
import sys

import pytest

from wsync_lab import provenance

FIELDS = {
    *("date", "commit", "dirty", "gpu", "driver", "cuda", "torch", "vllm", "ray", "nccl", "python"),
    *("kernel", "cpu", "seccomp_mode", "pidfd_getfd", "expandable_segments", "emulated_placement", "mps"),
}


def test_every_field_of_the_schema_is_there_and_is_json() -> None:
    collected = provenance.collect(emulated_placement=True)
    assert set(collected) == FIELDS
    assert collected["emulated_placement"] is True
    assert json.loads(json.dumps(collected, allow_nan=False)) == collected


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from wsync_lab import provenance, records; provenance.collect();"
        "sys.exit(sorted({'torch', 'vllm', 'ray', 'pandas'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pidfd_getfd_gives_ok_or_the_name_of_an_errno() -> None:
    assert provenance.try_pidfd_getfd() in {"ok", *errno.errorcode.values()}


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_a_refused_pidfd_getfd_is_reported_by_name(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(provenance, "_PIDFD_GETFD", f"import sys; sys.exit({code})")
    assert provenance.try_pidfd_getfd() == errno.errorcode[code]


def test_the_probe_really_takes_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = provenance._PIDFD_GETFD.replace("int(sys.argv[2])", "9999")
    monkeypatch.setattr(provenance, "_PIDFD_GETFD", broken)
    assert provenance.try_pidfd_getfd() != "ok"


@pytest.mark.parametrize(
    ("setting", "on"),
    [
        ("expandable_segments:True", True),
        ("max_split_size_mb:64, expandable_segments: False", False),
        ("", False),
    ],
)
def test_before_torch_runs_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, setting: str, on: bool
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)
    assert provenance._expandable_segments() is on


def test_an_absent_package_has_no_version() -> None:
    assert provenance.version_of("no-such-distribution-at-all", "msgspec") is not None
    assert provenance.version_of("no-such-distribution-at-all") is None
