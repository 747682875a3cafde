"""The table of conditions names tests that exist."""

import ast
import re

import pytest

from tests.tooling.imports import ROOT

TEXT = (ROOT / "tests" / "CASES.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)))
MAX_NUMBER, MAX_WORDS = 73, 12


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_a_named_test_exists(path: str, test: str) -> None:
    assert test in functions(path)


def test_there_are_named_tests() -> None:
    assert len(NAMED) > 40


def rows() -> list[list[str]]:
    """(numbers, condition, held by) of each row of the table."""
    table = [line for line in TEXT.splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def left_to_later_work() -> list[int]:
    """Numbers of the closing paragraph: ``19 to 21`` is a range."""
    closing = re.sub(r"(\d+) to (\d+)", lambda m: spelled_out(*m.groups()), TEXT[TEXT.rindex("\nNumbers") :])
    return [int(number) for number in re.findall(r"\d+", closing)]


def spelled_out(first: str, last: str) -> str:
    return " ".join(str(number) for number in range(int(first), int(last) + 1))


def test_every_number_has_one_place() -> None:
    listed = [int(number) for numbers, *_ in rows() for number in numbers.split(",")]
    assert sorted(listed + left_to_later_work()) == list(range(1, MAX_NUMBER + 1))


def test_a_condition_is_said_in_a_few_words_and_held_by_something() -> None:
    for numbers, condition, held_by in rows():
        assert len(condition.split()) <= MAX_WORDS, numbers
        assert held_by, numbers
