"""Which transports work on this machine: each is tried, none is guessed from versions."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import torch

from wsync_lab.errors import WsyncError
from wsync_lab.packing import build_plan
from wsync_lab.transports import open_reader, open_writer
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter
from wsync_lab.weights import TensorMeta

_PAYLOAD_BYTES = 4096
_JOIN_S = 10.0


@dataclass(frozen=True)
class Finding:
    """What came of trying one transport.

    Attributes:
        carried_by: the slot memory, or the collective, that carried the bytes; empty if none did.
        reason: why it does not work, and what to do; empty if it works.
    """

    transport: str
    works: bool
    carried_by: str = ""
    reason: str = ""


def try_transports(names: Iterable[str], device: torch.device) -> list[Finding]:
    """Send one small bucket through each transport, both ends in this process."""
    return [_try(name, device) for name in names]


def _try(name: str, device: torch.device) -> Finding:
    plan = build_plan([TensorMeta("probe", "uint8", (_PAYLOAD_BYTES,))], {}, _PAYLOAD_BYTES)
    try:
        with closing(open_writer(name, plan, 1, device)) as writer:
            offer = SlotOffer.of(name, 1, writer)
            fds = [os.dup(fd) for fd in writer.fds()]
            with closing(open_reader(plan, offer, fds, device)) as reader:
                arrived = _send_one_bucket(writer, reader)
            carrier = writer.collective or writer.slot_memory
    except (WsyncError, OSError) as error:
        return Finding(name, works=False, reason=str(error))
    return Finding(name, arrived, carrier, "" if arrived else "other bytes arrived than were sent")


def _send_one_bucket(writer: SlotWriter, reader: SlotReader) -> bool:
    """True when every byte of a bucket arrives; the ends of a collective have to meet first."""
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(reader.join, _JOIN_S, _is_here)
        writer.join(_JOIN_S, _is_here)
        joined.result()
    sent = torch.arange(_PAYLOAD_BYTES, dtype=torch.int32).to(torch.uint8)
    writer.slot(0)[:_PAYLOAD_BYTES].copy_(sent)
    payload = writer.publish(0, _PAYLOAD_BYTES)
    received = reader.read(0, _PAYLOAD_BYTES, payload).cpu().clone()
    reader.release()
    return bool(torch.equal(received, sent))


def _is_here() -> None:
    """The peer is this very process."""
