"""Weight synchronisation between a trainer and an inference engine that share GPUs."""

from wsync_lab.config import SyncConfig
from wsync_lab.errors import WsyncError

__all__ = ["SyncConfig", "WsyncError", "__version__"]
__version__ = "0.1.0"
