"""An engine generates with one committed version, or not at all."""

import pytest

from wsync_lab.errors import EngineFenced, ProtocolError
from wsync_lab.protocol.gate import WeightGate


def test_nothing_is_generated_before_the_first_commit() -> None:
    gate = WeightGate()
    with pytest.raises(EngineFenced, match="synchronise once before generating"):
        gate.check()
    assert gate.weight_version == 0


def test_a_commit_opens_and_an_update_closes() -> None:
    gate = WeightGate()
    gate.begin_update()
    gate.commit(4)
    gate.check()
    assert gate.weight_version == 4
    gate.begin_update()
    with pytest.raises(EngineFenced, match="running"):
        gate.check()


def test_a_failed_update_fences_until_a_full_one_commits() -> None:
    gate = WeightGate()
    gate.begin_update()
    gate.commit(1)
    gate.begin_update()
    gate.fence("bucket 3 was lost")
    with pytest.raises(EngineFenced, match="bucket 3 was lost"):
        gate.check()
    assert gate.weight_version == 1
    gate.begin_update()
    gate.commit(2)
    gate.check()


@pytest.mark.parametrize("committed", [0, 1])
def test_an_update_that_touched_nothing_changes_nothing(committed: int) -> None:
    gate = WeightGate()
    if committed:
        gate.begin_update()
        gate.commit(committed)
    gate.begin_update()
    gate.cancel()
    if committed:
        gate.check()
    else:
        with pytest.raises(EngineFenced):
            gate.check()


def test_versions_only_rise() -> None:
    gate = WeightGate()
    gate.begin_update()
    gate.commit(5)
    gate.begin_update()
    with pytest.raises(ProtocolError, match="only rise"):
        gate.commit(5)
    with pytest.raises(EngineFenced):
        gate.check()


def test_updates_do_not_nest() -> None:
    gate = WeightGate()
    gate.begin_update()
    with pytest.raises(ProtocolError, match="running already"):
        gate.begin_update()
