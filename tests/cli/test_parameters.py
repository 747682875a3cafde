"""Parameters are checked against the notebook before it runs."""

import nbformat
import pytest

from tests.cli.small_notebooks import write_notebook
from wsync_lab.cli.parameters import chosen, declared
from wsync_lab.errors import ConfigError


@pytest.fixture
def parameters(tmp_path):
    return declared(nbformat.read(write_notebook(tmp_path), as_version=4))


def test_declared_parameters_have_defaults_and_meanings(parameters) -> None:
    assert list(parameters) == ["transports", "num_steps", "rate", "engine", "quick"]
    assert parameters["transports"].default == ["cpu", "pinned"]
    assert parameters["num_steps"].meaning == "training steps"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("transports", "pinned", ["pinned"]),
        ("transports", "pinned, cpu", ["pinned", "cpu"]),
        ("transports", "['nccl', 'cpu']", ["nccl", "cpu"]),
        ("num_steps", "30", 30),
        ("num_steps", "-3", -3),
        ("rate", "2", 2.0),
        ("rate", "1e-3", 1e-3),
        ("engine", "12", "12"),
        ("quick", "True", True),
    ],
)
def test_values_get_the_type_of_the_default(parameters, name: str, text: str, value: object) -> None:
    result = chosen(parameters, [(name, text)])[name]
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [("num_steps", "many"), ("num_steps", "3.5"), ("num_steps", "True"), ("rate", "fast"), ("quick", "1"),
     ("transports", "[1"), ("rate", "None")],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(parameters, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"parameter '{name}' is "):
        chosen(parameters, [(name, text)])


def test_an_unknown_name_lists_the_known_ones(parameters) -> None:
    with pytest.raises(ConfigError, match="'num_step': this notebook has transports, num_steps, rate"):
        chosen(parameters, [("num_step", "3")])


@pytest.mark.parametrize("source", ["import os", "a = 1 + n", "a = b = 1", "a: int = 1", "print('x')"])
def test_a_parameters_cell_holds_literals_only(tmp_path, source: str) -> None:
    notebook = nbformat.read(write_notebook(tmp_path, parameters=source), as_version=4)
    with pytest.raises(ConfigError, match="literal"):
        declared(notebook)
