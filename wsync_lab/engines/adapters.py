"""What every inference engine does around an adapter update.

Requests go on between buckets, with the adapter that is served. The engine switches when every
worker has committed, in one assignment under the lock that a generation holds, so a request has
one adapter. Only then do workers free the old one.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from wsync_lab.channel.messages import Commit, Done, Failed, decode
from wsync_lab.engines.fair_lock import FairLock
from wsync_lab.errors import EngineFenced


class ServesAdapters(ABC):
    """Adapter half of an ``Engine``; ``update_id`` is that of the served adapter, 0 without one."""

    update_id = 0

    def __init__(self) -> None:
        self._generating, self._serving = FairLock(), threading.Lock()
        self._base_changed = False
        self._settled_id = 0  # an update is switched to once
        self._adapter_outcome: dict[str, Any] = {}

    def adapter_attach(self, addresses: Sequence[str]) -> None:
        """Connect worker ``i`` to the trainer that listens at ``addresses[i]``."""
        with self._serving:
            self._workers("adapter_attach", list(addresses))

    def adapter_detach(self) -> None:
        """Close the workers' channels for adapters; an update under way fails."""
        self._workers("adapter_detach")

    def adapter_serve(self) -> dict[str, Any]:
        """Take part in one adapter update over the channel.

        Returns:
            ``committed``, ``reason``, ``weight_version`` (the update_id), ``touched`` (False: what
            was served is whole), ``pause_s``, ``resume_s`` and ``apply_s``.
        """
        with self._serving:
            start = time.perf_counter()
            with self._generating:
                pause_s = time.perf_counter() - start
                self._settle_adapter(self._workers("adapter_serve"), pause_s)
            return self.adapter_outcome()

    def adapter_handle(self, message: bytes, payload: bytes | None = None) -> bytes:
        """One message of an update that travels as one RPC a message; returns the reply."""
        with self._generating:
            replies: list[bytes] = self._workers("adapter_handle", message, payload)
            failed = [reply for reply in replies if isinstance(decode(reply), Failed)]
            if isinstance(decode(message), Commit) or isinstance(decode(replies[0]), Done):
                self._settle_adapter(self._workers("adapter_outcome"), 0.0)
        return failed[0] if failed else replies[0]

    def adapter_outcome(self) -> dict[str, Any]:
        """How the last adapter update ended; see ``adapter_serve``."""
        return dict(self._adapter_outcome)

    def drop_adapter(self) -> None:
        """Serve the base weights alone."""
        with self._generating:
            self._switch(0)

    def _check_adapter(self) -> None:
        if self._base_changed:
            raise EngineFenced(
                f"adapter {self.update_id} was trained on earlier base weights: commit an adapter of the "
                "new ones, or drop it"
            )

    def _base_was_replaced(self) -> None:
        """Full weights were committed: an adapter of the old ones does not fit them."""
        self._base_changed = self.update_id > 0

    def _settle_adapter(self, outcomes: Sequence[dict[str, Any] | None], pause_s: float) -> None:
        """Switch if every worker has committed; free what is not served."""
        start = time.perf_counter()
        ended = [outcome for outcome in outcomes if outcome]
        if not ended:
            return
        worst = next((outcome for outcome in ended if not outcome["committed"]), ended[0])
        committed = worst["committed"] and len(ended) == len(outcomes)
        new = committed and worst["weight_version"] > self._settled_id
        self._settled_id = max(self._settled_id, worst["weight_version"])
        self._switch(worst["weight_version"] if new else self.update_id)
        times = {"pause_s": pause_s, "resume_s": time.perf_counter() - start}
        self._adapter_outcome = worst | times | {"committed": committed}

    def _switch(self, update_id: int) -> None:
        if update_id != self.update_id:
            self.update_id, self._base_changed = update_id, False
        self._workers("adapter_keep", update_id)

    @abstractmethod
    def _workers(self, method: str, *args: Any) -> list[Any]:
        """``method`` on every worker; what each returned."""
