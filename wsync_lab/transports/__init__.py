"""Transports by name. Their modules are imported only when one is asked for."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from wsync_lab.config import TRANSPORT_NAMES
from wsync_lab.errors import ConfigError
from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter


def open_writer(name: str, plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    """Trainer end of transport ``name``; see ``transports.base``."""
    writer: SlotWriter = _module(name).open_writer(plan, num_slots, device)
    return writer


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    """Worker end of the transport that ``offer`` names; see ``transports.base``."""
    reader: SlotReader = _module(offer.transport).open_reader(plan, offer, fds, device)
    return reader


def _module(name: str) -> Any:
    if name not in TRANSPORT_NAMES:
        raise ConfigError(f"unknown transport {name!r}: choose one of {', '.join(TRANSPORT_NAMES)}")
    return import_module(f"wsync_lab.transports.{name}")
