"""The table of conditions names tests that exist."""

import ast
import re

import pytest

from tests.tooling.imports import ROOT

NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "tests" / "CASES.md").read_text())))


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_a_named_test_exists(path: str, test: str) -> None:
    assert test in functions(path)


def test_there_are_named_tests() -> None:
    assert len(NAMED) > 40
