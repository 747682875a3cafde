"""The update of a whole job: committed on the engine of every colocated pair, or on none."""

import torch
import torch.distributed as dist

from wsync_lab.errors import UpdateRejected, WsyncError
from wsync_lab.protocol.phases import SyncReport
from wsync_lab.protocol.sync import WeightSync


class JobSync:
    """One rank's part in two-phase commit over the trainer ranks' process group.

    Every rank prepares; only when all have, each commits. An engine that is lost after that
    vote is fenced, so it serves nothing, and every rank hears of it; no engine ever serves
    older weights beside another's new ones.

    Args:
        sync: this rank's pair.
        group: the trainer ranks; needs a backend for CPU tensors. None is the default group.
    """

    def __init__(self, sync: WeightSync, group: dist.ProcessGroup | None = None) -> None:
        self._sync, self._group = sync, group

    def update(self, version: int) -> SyncReport:
        """Every rank calls it, with the same version.

        Raises:
            WsyncError: this rank's own failure.
            UpdateRejected: this rank was ready, another one was not; nothing was committed
                here, or, where the text says so, everything but another rank's engine.
        """
        failure = self._prepare(version)
        if not self._all_ranks(failure is None):
            raise failure or self._aborted(version)
        report, failure = self._commit()
        if not self._all_ranks(failure is None):
            raise failure or UpdateRejected(
                f"update {version} is committed here, but another rank lost its engine: reconnect it, "
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

    def _commit(self) -> tuple[SyncReport | None, WsyncError | None]:
        try:
            return self._sync.commit(), None
        except WsyncError as error:
            return None, error

    def _aborted(self, version: int) -> WsyncError:
        failure = UpdateRejected(f"update {version} failed on another rank: nothing was committed")
        self._sync.abort(str(failure))
        return failure

    def _all_ranks(self, ready: bool) -> bool:
        flag = torch.tensor(int(ready))
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._group)
        return bool(flag.item())
