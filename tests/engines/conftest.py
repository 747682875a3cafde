"""One process runs all vLLM engines of these tests that need not be apart."""

from collections.abc import Iterator

import pytest

from tests.engines.vllm_host import VllmHost
from wsync_lab.engines.process import ProcessEngine


@pytest.fixture(scope="package")
def vllm_host() -> Iterator[ProcessEngine]:
    with ProcessEngine(VllmHost) as host:
        yield host
