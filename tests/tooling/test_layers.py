"""A module imports only from its own layer or a lower one, and heavy packages only where allowed."""

import subprocess
import sys

import pytest

from tests.tooling.imports import ROOT, imported_names, modules
from wsync_lab.config import TRANSPORT_NAMES

LAYERS = (
    ("errors", "config", "weights", "packing", "unpacking", "digest", "copies", "chunks"),
    ("transports", "channel", "protocol", "lora"),
    ("timing", "verify", "provenance", "records", "sandbox"),
    ("experiment", "engines", "bench", "doctor", "pinning"),
    ("tables", "plots"),
    ("cli", "reports"),
)
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "vllm": ("engines",),
    "ray": ("experiment",),
    "transformers": ("engines", "experiment", "bench"),
    "peft": ("experiment",),
    "pandas": ("tables", "plots", "reports", "cli"),
    "matplotlib": ("plots", "reports"),
    "seaborn": ("plots",),
    "papermill": ("cli", "reports"),
}
NEVER_IN = {"torch": ("tables", "plots", "reports")}
MAX_LINES = 300

MODULES = modules()
every_module = pytest.mark.parametrize("module", MODULES)


def part(module: str) -> str:
    """``transports`` of ``wsync_lab.transports.cpu``; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


@every_module
def test_has_a_layer(module):
    assert part(module) in {"", *LAYER_OF}, f"give {module} a row in LAYERS"


@every_module
def test_imports_only_from_its_own_layer_or_below(module):
    own = LAYER_OF.get(part(module), 0)
    reached = {name for name in imported_names(MODULES[module]) if name.startswith("wsync_lab.")}
    above = {name for name in reached if LAYER_OF.get(part(name), 0) > own}
    assert not above


@every_module
def test_imports_heavy_packages_only_where_its_part_may(module):
    packages = {name.split(".")[0] for name in imported_names(MODULES[module])}
    misplaced = {p for p in packages & ONLY_IN.keys() if part(module) not in ONLY_IN[p]}
    forbidden = {p for p in packages & NEVER_IN.keys() if part(module) in NEVER_IN[p]}
    assert not misplaced | forbidden


@pytest.mark.parametrize("name", TRANSPORT_NAMES)
def test_transports_do_not_import_one_another(name):
    module = f"wsync_lab.transports.{name}"
    others = {f"wsync_lab.transports.{other}" for other in TRANSPORT_NAMES if other != name}
    assert module in MODULES
    assert not imported_names(MODULES[module]) & others


@every_module
def test_pickle_is_only_in_the_cpu_transport(module):
    picklers = {"pickle", "cloudpickle", "dill", "multiprocessing.reduction"}
    assert module == "wsync_lab.transports.cpu" or not imported_names(MODULES[module]) & picklers


@every_module
def test_holds_one_idea(module):
    path = MODULES[module]
    assert len(path.read_text().splitlines()) < MAX_LINES
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


BLOCKED_IMPORT = """
import sys
from importlib import import_module

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Blocker())
for name in {imported}:
    import_module(name)
"""


def import_without(blocked: tuple[str, ...], imported: list[str]) -> subprocess.CompletedProcess[str]:
    """Import modules in a process that sees no GPU and lacks the blocked packages."""
    program = BLOCKED_IMPORT.format(blocked=set(blocked), imported=imported)
    environment = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )


def test_every_light_module_imports_without_cuda_vllm_and_ray():
    heavy = ("engines", "experiment", "cli")
    light = [name for name in MODULES if part(name) not in heavy]
    process = import_without(("vllm", "ray", "cuda", "transformers"), light)
    assert process.returncode == 0, process.stderr


def test_tables_and_plots_import_without_torch():
    names = [name for name in MODULES if part(name) in ("tables", "plots")]
    process = import_without(("torch", "vllm", "ray"), names)
    assert process.returncode == 0, process.stderr


def test_the_command_line_starts_without_torch_vllm_and_ray():
    process = import_without(("torch", "vllm", "ray"), ["wsync_lab.cli"])
    assert process.returncode == 0, process.stderr


def test_a_blocked_package_is_really_blocked():
    assert "msgspec is blocked" in import_without(("msgspec",), ["wsync_lab.channel.messages"]).stderr
