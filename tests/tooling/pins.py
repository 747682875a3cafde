"""The places that name versions, read as canonical package name -> requirement."""

import tomllib
from collections.abc import Iterable

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tooling.imports import ROOT

REQUIREMENTS = ROOT / "requirements"


def by_name(lines: Iterable[str]) -> dict[str, Requirement]:
    """Comments, blank lines and pip options are left out."""
    stripped = (line.split(" #")[0].strip() for line in lines)
    requirements = [Requirement(line) for line in stripped if line and line[0] not in "#-"]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def pip_file(name: str) -> dict[str, Requirement]:
    return by_name((REQUIREMENTS / name).read_text().splitlines())


def gpu_environment() -> dict[str, Requirement]:
    """The pip section of environment.yml."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    return by_name(next(entry["pip"] for entry in dependencies if isinstance(entry, dict)))


def package_needs() -> dict[str, Requirement]:
    """Dependencies of pyproject.toml, all extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return by_name([*project["dependencies"], *(line for extra in extras for line in extra)])


def exact_version(requirement: Requirement) -> str:
    """The version of ``name==version``; an AssertionError for anything looser."""
    (specifier,) = requirement.specifier
    assert specifier.operator == "==" and "*" not in specifier.version, f"{requirement} is not exact"
    return specifier.version
