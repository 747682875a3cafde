"""Every message of the update protocol, and how it is encoded.

One update: ``Begin`` answered by ``Started``, then ``SlotReady`` answered by ``SlotFree`` for each
bucket, ``Seal`` answered by ``Prepared``, then ``Commit`` or ``Abort`` answered by ``Done``.
``Failed`` answers anything that went wrong and ends the update. An update of an adapter begins
with ``AdapterBegin`` and names itself in every ``AdapterBucket``; in the other messages its
``update_id`` stands for the version.
"""

from typing import Annotated

import msgspec

from wsync_lab.errors import ProtocolError
from wsync_lab.lora.manifest import AdapterManifest
from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotOffer

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 64 << 20  # a plan of about 400 000 tensors

Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Version = Annotated[int, msgspec.Meta(ge=1)]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the class name is the tag on the wire."""


class Hello(Message, frozen=True):
    """Engine to trainer, first on every connection."""

    protocol: int
    pid: int
    rank: int


class Offer(Message, frozen=True):
    """Trainer to engine, once: the plan and the staging slots (fds travel beside it)."""

    plan: Plan
    slots: SlotOffer


class Accepted(Message, frozen=True):
    """Engine to trainer: the manifest matches the engine and the slots are mapped."""

    plan_digest: str


class Begin(Message, frozen=True):
    """An update towards ``weight_version`` under the agreed plan starts.

    ``verify`` announces that ``Seal`` will carry digests.
    """

    weight_version: Version
    plan_digest: str
    verify: bool = False


class AdapterBegin(Message, frozen=True):
    """The adapter of ``manifest`` follows, laid out by ``plan``.

    ``digest`` is the manifest's: a configuration has no digest of its own that would tell a
    changed byte.
    """

    manifest: AdapterManifest
    plan: Plan
    digest: str


class AdapterBucket(Message, frozen=True):
    """Bucket ``bucket`` of adapter update ``update_id`` is complete in slot ``slot``."""

    update_id: Version
    bucket: Index
    slot: Index


class Started(Message, frozen=True):
    """The engine is paused and ready for the update's first bucket."""

    weight_version: Version


class SlotReady(Message, frozen=True):
    """Bucket ``bucket`` is complete in slot ``slot``."""

    bucket: Index
    slot: Index


class SlotFree(Message, frozen=True):
    """The receiver's device has finished reading ``slot``; it may be overwritten."""

    slot: Index


class Seal(Message, frozen=True):
    """Every bucket has been sent; digests of the plan's tensors, in order, where verified."""

    weight_version: Version
    digests: tuple[int, ...] = ()


class Prepared(Message, frozen=True):
    """Every planned tensor arrived and was applied, which took ``apply_s`` seconds in all."""

    weight_version: Version
    apply_s: float


class Commit(Message, frozen=True):
    """Publish ``weight_version``: every worker of the update is prepared."""

    weight_version: Version


class Abort(Message, frozen=True):
    """Give the update up."""

    weight_version: Version
    reason: str


class Done(Message, frozen=True):
    """The update ended: committed, or aborted on request."""

    weight_version: Version
    committed: bool


class Failed(Message, frozen=True):
    """The update, or the offer, failed on the engine's side."""

    reason: str


AnyMessage = (
    Hello
    | Offer
    | Accepted
    | Begin
    | AdapterBegin
    | AdapterBucket
    | Started
    | SlotReady
    | SlotFree
    | Seal
    | Prepared
    | Commit
    | Abort
    | Done
    | Failed
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """MessagePack bytes of ``message``.

    Raises:
        ProtocolError: longer than ``MAX_MESSAGE_BYTES``.
    """
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a {type(message).__name__} of {len(data)} bytes is over the limit")
    return data


def decode(data: bytes) -> Message:
    """The message in ``data``; anything malformed or unknown is a ``ProtocolError``."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"a message that is none of this protocol: {error}") from None
