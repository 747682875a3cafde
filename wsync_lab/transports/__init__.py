"""Transports by name. Their modules are imported only when one is asked for."""

from importlib import import_module
from typing import Any

from wsync_lab.config import TRANSPORT_NAMES
from wsync_lab.errors import ConfigError, TransportUnavailable
from wsync_lab.transports.base import SlotReader, SlotWriter

_MODULES = {"cpu": "wsync_lab.transports.cpu", "pinned": "wsync_lab.transports.pinned"}
AVAILABLE = tuple(_MODULES)


def writer_class(name: str) -> type[SlotWriter]:
    """Trainer end of transport ``name``; see ``AVAILABLE``."""
    writer: type[SlotWriter] = _module(name).Writer
    return writer


def reader_class(name: str) -> type[SlotReader]:
    """Worker end of transport ``name``."""
    reader: type[SlotReader] = _module(name).Reader
    return reader


def _module(name: str) -> Any:
    if name not in TRANSPORT_NAMES:
        raise ConfigError(f"unknown transport {name!r}: choose one of {', '.join(AVAILABLE)}")
    if name not in _MODULES:
        raise TransportUnavailable(
            f"transport {name!r} is not built yet: choose one of {', '.join(AVAILABLE)}"
        )
    return import_module(_MODULES[name])
