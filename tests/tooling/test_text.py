"""Project text reads the same on every machine."""

import re

import pytest

from tests.tooling.imports import ROOT
from tests.tooling.tracked import project_files

DEVELOPER_PATH = re.compile(r"(?<![\w.~/-])/(?:home|Users|root|work|workspace|mnt|tmp)/[\w.]")
BINARY = {".png", ".pdf"}


def test_no_absolute_path_of_a_developers_machine():
    texts = [path for path in project_files() if path.suffix not in BINARY]
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if DEVELOPER_PATH.search(line)
    }
    assert not found


@pytest.mark.parametrize("place", ["home/ann/lab", "Users/ann", "work/lab", "tmp/a", "root/.cache"])
def test_such_a_path_is_recognised(place):
    assert DEVELOPER_PATH.search(f"records = '/{place}'")
    assert not DEVELOPER_PATH.search(f"https://example.org/{place} and ~/{place} and lab/{place}")
