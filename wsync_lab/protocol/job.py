"""The update of a whole job: committed on the engine of every colocated pair, or on none."""

from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from wsync_lab.errors import UpdateRejected
from wsync_lab.protocol.phases import SyncReport


class PairSync(Protocol):
    """One pair's update: ``protocol.sync.WeightSync``, or ``lora.sync.AdapterSync``."""

    def prepare(self, version: int, /) -> None: ...

    def commit(self) -> SyncReport: ...

    def abort(self, reason: str) -> None: ...

    def close(self) -> None: ...


class JobSync:
    """One rank's part in two-phase commit over the trainer ranks' process group.

    Every rank prepares; only when all have, each commits. An engine that is lost after that
    vote is fenced, so it serves nothing, and every rank hears of it; no engine ever serves
    older weights beside another's new ones. A rank that is lost while the vote is taken may
    have been counted by some ranks and not by others: those that were not told abort, which
    fences their engines, and the job needs a new process group.

    Args:
        sync: this rank's pair.
        group: the trainer ranks; needs a backend for CPU tensors. None is the default group.
        deadline_s: longest wait for the other ranks' votes. Keep it below the worker's own
            wait for the commit, or an abort finds a worker that has left.
    """

    def __init__(
        self, sync: PairSync, group: dist.ProcessGroup | None = None, deadline_s: float = 60.0
    ) -> None:
        self._sync, self._group, self._deadline_s = sync, group, deadline_s

    def update(self, version: int) -> SyncReport:
        """Every rank calls it, with the same version.

        Raises:
            WsyncError: this rank's own failure.
            UpdateRejected: this rank was ready, another one was not; nothing was committed
                here, or, where the text says so, everything but another rank's engine.
        """
        failure = self._prepare(version)
        if objection := self._objection(version, failure is None):
            raise failure or self._aborted(f"update {version} {objection}: nothing was committed here")
        report, failure = self._commit()
        if objection := self._objection(version, failure is None):
            raise failure or UpdateRejected(
                f"update {version} is committed here, but {objection}: reconnect what was lost, "
                "and send a newer version to all"
            )
        assert report is not None
        return report

    def _prepare(self, version: int) -> Exception | None:
        try:
            self._sync.prepare(version)
        except Exception as error:  # the source's own too: no rank may be left waiting for the vote
            return error
        return None

    def _commit(self) -> tuple[SyncReport | None, Exception | None]:
        try:
            return self._sync.commit(), None
        except Exception as error:  # of any type: no rank may be left waiting for the vote
            return None, error

    def _aborted(self, reason: str) -> UpdateRejected:
        self._sync.abort(reason)
        return UpdateRejected(reason)

    def _objection(self, version: int, ready: bool) -> str:
        """Why the ranks cannot go on together; empty if they can."""
        votes = torch.tensor([int(ready), version, -version])
        try:
            work = dist.all_reduce(votes, dist.ReduceOp.MIN, self._group, async_op=True)
            work.wait(timedelta(seconds=self._deadline_s))
        except RuntimeError as error:  # what torch raises for a lost rank, and for a silent one
            return f"lost a trainer rank ({error})"
        all_ready, lowest, highest = bool(votes[0]), int(votes[1]), -int(votes[2])
        if lowest != highest:
            return f"was called with versions {lowest} to {highest}"
        return "" if all_ready else "failed on another rank"
