"""The channel delivers whole messages and descriptors, or says at once why not."""

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import slot_sizes, state_dicts
from wsync_lab.channel import link as link_module
from wsync_lab.channel import messages, rendezvous
from wsync_lab.channel.link import Link, close_all
from wsync_lab.channel.messages import Begin, Failed, Offer, Seal, SlotFree, decode, encode
from wsync_lab.channel.rendezvous import Listener, connect
from wsync_lab.errors import DeadlineExceeded, PeerLost, ProtocolError
from wsync_lab.packing import build_plan
from wsync_lab.transports.base import SlotOffer


@pytest.fixture
def pair() -> Iterator[tuple[Link, Link]]:
    ends = [Link(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)]
    yield ends[0], ends[1]
    for end in ends:
        end.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Link]]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    link = Link(ends[1])
    yield ends[0], link
    ends[0].close()
    link.close()


@given(st.data())
def test_an_offer_survives_the_wire(data: st.DataObject) -> None:
    metadata = data.draw(state_dicts())
    offer = Offer(build_plan(metadata, {}, data.draw(slot_sizes(metadata))), SlotOffer("pinned", 2, "memfd"))
    assert decode(encode(offer)) == offer


@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error_and_nothing_else(noise: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(noise)


def test_messages_keep_their_order_and_descriptors(pair: tuple[Link, Link], tmp_path: Path) -> None:
    here, there = pair
    (tmp_path / "slot").write_text("bytes of slot 7")
    fd = os.open(tmp_path / "slot", os.O_RDONLY)
    here.send(Begin(3, "digest"), deadline_s=1)
    here.send(SlotFree(7), [fd], deadline_s=1)
    os.close(fd)
    assert there.receive(deadline_s=1) == (Begin(3, "digest"), [])
    message, fds = there.receive(deadline_s=1)
    assert message == SlotFree(7)
    assert os.read(fds[0], 100) == b"bytes of slot 7"
    assert not os.get_inheritable(fds[0])
    close_all(fds)


def test_a_silent_peer_is_a_deadline_that_names_its_state(pair: tuple[Link, Link]) -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=rf"0.1 s; peer {os.getpid()} is running"):
        pair[0].receive(deadline_s=0.1)
    assert time.monotonic() - start < 10


def test_a_peer_that_does_not_read_is_a_deadline(pair: tuple[Link, Link]) -> None:
    with pytest.raises(DeadlineExceeded, match="sending 8388"):
        pair[0].send(Failed("x" * (8 << 20)), deadline_s=0.2)


def test_a_closed_peer_is_noticed_at_once(pair: tuple[Link, Link]) -> None:
    pair[1].close()
    start = time.monotonic()
    with pytest.raises(PeerLost, match="closed the channel"):
        pair[0].receive(deadline_s=30)
    with pytest.raises(PeerLost):
        pair[0].send(Seal(1), deadline_s=30)
    assert time.monotonic() - start < 10


def test_a_killed_peer_is_noticed_at_once() -> None:
    with Listener() as listener:
        pid = os.fork()
        if pid == 0:
            connect(listener.address, deadline_s=5)
            time.sleep(60)
        link = listener.accept(deadline_s=5)
    assert link.peer_pid == pid
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(PeerLost, match=rf"peer {pid} closed the channel; it is "):
        link.receive(deadline_s=30)
    assert time.monotonic() - start < 10
    os.waitpid(pid, 0)
    link.close()


def frame(num_bytes: int, num_fds: int, body: bytes = b"") -> bytes:
    return struct.pack("!IB", num_bytes, num_fds) + body


@pytest.mark.parametrize(
    "data",
    [frame(messages.MAX_MESSAGE_BYTES + 1, 0), frame(3, 1, b"abc"), frame(3, 0, b"abc")],
    ids=["oversized", "missing descriptor", "no message"],
)
def test_a_malformed_frame_is_refused(raw: tuple[socket.socket, Link], data: bytes) -> None:
    raw[0].sendall(data)
    with pytest.raises(ProtocolError):
        raw[1].receive(deadline_s=1)


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_a_truncated_frame_is_a_lost_peer(raw: tuple[socket.socket, Link], cut: int) -> None:
    body = encode(Seal(5))
    raw[0].sendall(frame(len(body), 0, body)[:cut])
    raw[0].close()
    with pytest.raises(PeerLost):
        raw[1].receive(deadline_s=1)


def test_descriptors_of_a_refused_frame_are_closed(raw: tuple[socket.socket, Link]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    read_end, write_end = os.pipe()
    socket.send_fds(raw[0], [frame(3, 1, b"abc")], [write_end])
    os.close(write_end)
    with pytest.raises(ProtocolError):
        raw[1].receive(deadline_s=1)
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_oversized_message_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(Failed("x" * 20))


def test_the_directory_is_private_and_goes_away() -> None:
    with Listener() as listener:
        directory = Path(listener.address).parent
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not directory.exists()


def test_a_deep_temporary_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "/".join(["a-rather-long-folder-name"] * 8)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with Listener() as listener:
        assert len(listener.address) > 200
        there = connect(listener.address, deadline_s=1)
        here = listener.accept(deadline_s=1)
    there.send(Seal(4), deadline_s=1)
    assert here.receive(deadline_s=1)[0] == Seal(4)


def test_several_pairs_do_not_meet() -> None:
    with Listener() as one, Listener() as two:
        engines = [connect(listener.address, deadline_s=1) for listener in (two, one)]
        trainers = [listener.accept(deadline_s=1) for listener in (two, one)]
        for version, engine in enumerate(engines, 1):
            engine.send(Seal(version), deadline_s=1)
        assert [t.receive(deadline_s=1)[0] for t in trainers] == [Seal(1), Seal(2)]


def test_connecting_to_nobody_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="no trainer listens"):
        connect(str(tmp_path / "pair"), deadline_s=1)


@pytest.mark.parametrize(
    ("uid", "message"), [(12345, "runs as user 12345"), (65534, "another user namespace")]
)
def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, uid: int, message: str) -> None:
    monkeypatch.setattr(link_module, "peer_credentials", lambda _: (1, uid, uid))
    monkeypatch.setattr(rendezvous, "_OVERFLOW_UID", Path("/proc/sys/kernel/overflowuid"))
    with Listener() as listener, pytest.raises(ProtocolError, match=message):
        connect(listener.address, deadline_s=1)


def test_folders_of_other_programs_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("wsync-model-1", "wsync-pair-results"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").touch()
        os.utime(tmp_path / name, (0, 0))
    Listener().close()
    assert len(list(tmp_path.glob("*/kept"))) == 2


def test_the_folder_of_a_killed_trainer_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pid = os.fork()
    if pid == 0:
        Listener()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (abandoned,) = tmp_path.iterdir()
    os.utime(abandoned, (0, 0))
    with Listener() as alive:
        assert [Path(alive.address).parent] == list(tmp_path.iterdir())
        Listener().close()
        assert Path(alive.address).exists()
