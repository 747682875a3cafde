"""Every error a caller may want to tell apart. The text of each says what to do."""


class WsyncError(Exception):
    """Base of all errors raised on purpose by this package."""


class ConfigError(WsyncError, ValueError):
    """A request that cannot be served as it stands; the command line exits with status 2."""


class PlanError(WsyncError):
    """The weights do not match the packing plan agreed at init."""


class ProtocolError(WsyncError):
    """The peer sent something that the update protocol does not allow here."""


class PeerLost(WsyncError):
    """The other end of a colocated pair is gone."""


class DeadlineExceeded(WsyncError, TimeoutError):
    """A wait outlasted its deadline; the peer may still be alive."""


class UpdateRejected(WsyncError):
    """The inference worker refused an update; its reason is the message."""


class EngineFenced(WsyncError):
    """The engine must not generate: it has no complete set of weights."""


class TransportUnavailable(WsyncError):
    """This transport cannot run here; the message names the missing requirement."""
