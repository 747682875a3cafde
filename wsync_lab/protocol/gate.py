"""May the engine generate? A version is published whole, or generation is refused."""

from wsync_lab.errors import ConfigError, EngineFenced, ProtocolError

_NOTHING_YET = "no weights were committed yet: synchronise once before generating"


class WeightGate:
    """Tracks which weights an engine holds: none, one committed version, or a mixture.

    ``weight_version`` is the last committed version, 0 before the first commit.
    """

    def __init__(self) -> None:
        self.weight_version = 0
        self._updating = False
        self._fence: str | None = _NOTHING_YET

    def check(self) -> None:
        """Raise ``EngineFenced`` unless one complete version is live."""
        if self._updating:
            raise EngineFenced("a weight update is running: generate when it has ended")
        if self._fence is not None:
            raise EngineFenced(self._fence)

    def adopt(self) -> None:
        """The engine holds complete weights of its own, which it loaded when it started.

        Raises:
            ConfigError: an update was committed, failed or runs: they are no longer those.
        """
        if self._updating or self._fence != _NOTHING_YET:
            raise ConfigError("weights can be adopted before the first update, not after it")
        self._fence = None

    def begin_update(self) -> None:
        """An update starts; generation waits for its end."""
        if self._updating:
            raise ProtocolError("an update is running already: end it before the next")
        self._updating = True

    def commit(self, version: int) -> None:
        """The update is live as ``version``, which must be above the last one."""
        if version <= self.weight_version:
            self.fence(f"version {version} was committed after {self.weight_version}")
            raise ProtocolError(f"version {version} is not above {self.weight_version}: versions only rise")
        self.weight_version, self._updating, self._fence = version, False, None

    def cancel(self) -> None:
        """The update ended before it touched the weights: what was live stays live."""
        self._updating = False

    def fence(self, reason: str) -> None:
        """The weights may be a mixture: refuse to generate until a full update commits."""
        self._updating = False
        self._fence = f"the last weight update failed ({reason}): commit a full update before generating"
