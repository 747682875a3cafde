"""Both ends of a pair fit on the cores together."""

import os

import pytest
import torch

from wsync_lab.protocol.host_threads import half_of_the_cores


@pytest.mark.parametrize("cores", [{0}, {0, 1}, set(range(16))])
def test_at_most_half_of_the_cores_and_all_again_afterwards(
    cores: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    before = torch.get_num_threads()
    with pytest.raises(KeyError), half_of_the_cores():
        assert torch.get_num_threads() == min(before, max(1, len(cores) // 2))
        raise KeyError
    assert torch.get_num_threads() == before


def test_a_process_with_fewer_threads_keeps_them() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with half_of_the_cores():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
