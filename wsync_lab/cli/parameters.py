"""Parameters of a notebook: the plain literals of its cell tagged ``parameters``.

papermill only warns of a parameter that the notebook does not have; here it is refused before
anything runs, as is a value of another type than the default's.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from nbformat import NotebookNode

from wsync_lab.errors import ConfigError

Value = str | int | float | bool | list[object]


@dataclass(frozen=True)
class Parameter:
    """A name, its default, and the comment beside it."""

    name: str
    default: Value
    meaning: str


def declared(notebook: NotebookNode) -> dict[str, Parameter]:
    """The parameters of ``notebook``, in order.

    Raises:
        ConfigError: it has no such cell, or the cell holds more than ``name = literal`` lines.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ConfigError(f"the notebook has {len(cells)} cells tagged 'parameters' instead of one")
    lines = cells[0].source.splitlines()
    parameters = [_parameter(node, lines) for node in ast.parse(cells[0].source).body]
    return {parameter.name: parameter for parameter in parameters}


def chosen(parameters: dict[str, Parameter], pairs: Iterable[tuple[str, str]]) -> dict[str, Value]:
    """The values of ``-p NAME VALUE`` pairs, of the types that the notebook declares.

    Raises:
        ConfigError: an unknown name (the message lists the known ones) or a wrong type.
    """
    values: dict[str, Value] = {}
    for name, text in pairs:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise ConfigError(f"unknown parameter {name!r}: this notebook has {known}")
        values[name] = _value(parameters[name], text)
    return values


def _parameter(node: ast.stmt, lines: list[str]) -> Parameter:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            comment = lines[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :]
            return Parameter(name, _literal(value, name), comment.strip().lstrip("# "))
    raise ConfigError(f"the parameters cell has {ast.unparse(node)!r}: keep to `name = literal` lines")


def _literal(value: ast.expr, name: str) -> Value:
    try:
        literal: Value = ast.literal_eval(value)
    except ValueError:
        raise ConfigError(f"parameter {name!r} is no plain literal in the notebook: make it one") from None
    return literal


def _value(parameter: Parameter, text: str) -> Value:
    default = parameter.default
    if isinstance(default, list):
        return _list(parameter, text)
    return _scalar(parameter.name, type(default), text)


def _list(parameter: Parameter, text: str) -> Value:
    """``a,b`` or a Python list; elements are of the type of the default's first element."""
    assert isinstance(parameter.default, list)
    kind = type(parameter.default[0]) if parameter.default else str
    value = _evaluated(text) if text.startswith("[") else text.split(",")
    if not isinstance(value, list):
        raise ConfigError(f"parameter {parameter.name!r} is {text!r}: write a list as a,b or [1, 2]")
    return [_scalar(parameter.name, kind, str(item).strip()) for item in value if str(item).strip()]


def _scalar(name: str, kind: type, text: str) -> Value:
    if kind is str:
        return text
    value = _evaluated(text)
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits:
        raise ConfigError(f"parameter {name!r} is {text!r}: give a value of type {kind.__name__}")
    return kind(value)  # type: ignore[no-any-return]


def _evaluated(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
