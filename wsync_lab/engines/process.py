"""An engine in a process of its own, and the trainer's handle on it: no Ray needed.

Calls travel as MessagePack over a pipe and run one after another. The process ends with its
owner: the pipe's end-of-file tells it.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from wsync_lab import errors
from wsync_lab.errors import PeerLost, WsyncError


class PipeClient:
    """``EngineClient`` for an engine that process ``pid`` serves at the other end of ``pipe``."""

    def __init__(self, pipe: Connection, pid: int) -> None:
        self._pipe, self.pid = pipe, pid
        self._calls: dict[int, Future[Any]] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()
        threading.Thread(target=self._read_replies, daemon=True).start()

    def submit(self, method: str, *args: Any) -> "Call":
        """Start ``method`` in the engine's process; see ``protocol.carrier.EngineClient``."""
        future: Future[Any] = Future()
        with self._lock:
            identity = next(self._ids)
            self._calls[identity] = future
            try:
                self._pipe.send_bytes(msgspec.msgpack.encode((identity, method, args)))
            except OSError:
                self._lose_calls()
        return Call(future)

    def call(self, method: str, *args: Any, timeout_s: float = 60.0) -> Any:
        """``submit`` and wait."""
        return self.submit(method, *args).result(timeout_s)

    def _read_replies(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                identity, error, value = msgspec.msgpack.decode(self._pipe.recv_bytes())
                future = self._calls.pop(identity)
                future.set_exception(_exception(*error)) if error else future.set_result(value)
        with self._lock:
            self._lose_calls()

    def _lose_calls(self) -> None:
        while self._calls:
            _, future = self._calls.popitem()
            future.set_exception(PeerLost(f"the engine's process {self.pid} is gone"))


class ProcessEngine(PipeClient):
    """An engine that ``factory(*args)`` builds in a new process.

    ``factory`` is importable by name; its value has the methods of ``engines.base.Engine``.
    ``start_method`` is one of ``multiprocessing``'s.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        *args: Any,
        start_method: str = "forkserver",
        start_timeout_s: float = 60.0,
    ) -> None:
        multiprocessing.set_forkserver_preload(["torch", "wsync_lab.engines.process"])
        context: Any = multiprocessing.get_context(start_method)
        pipe, child = context.Pipe()
        # A forked child would hold the owner's end too, and never see it close.
        inherited = pipe if start_method == "fork" else None
        self._process = context.Process(target=_run, args=(child, inherited, factory, args), daemon=True)
        self._process.start()
        child.close()
        super().__init__(pipe, self._process.pid or 0)
        self.call("ready", timeout_s=start_timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Kill, stop or continue the process, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def close(self) -> None:
        """End the process: it sees the end of the pipe, and is killed if that is not enough."""
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(b"")
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._pipe.close()

    def __enter__(self) -> "ProcessEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Call:
    """A call under way; see ``protocol.carrier.Pending``."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def result(self, timeout_s: float) -> Any:
        return self._future.result(timeout_s)


def _run(
    pipe: Connection, inherited: Connection | None, factory: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    if inherited is not None:
        inherited.close()
    serve(pipe, factory(*args))


def serve(pipe: Connection, engine: Any) -> None:
    """Run the calls that come through ``pipe`` on ``engine``, one after another, to its end."""
    with contextlib.suppress(EOFError, OSError):
        while request := pipe.recv_bytes():
            identity, method, arguments = msgspec.msgpack.decode(request)
            pipe.send_bytes(msgspec.msgpack.encode((identity, *_outcome(engine, method, arguments))))


def _outcome(engine: Any, method: str, args: list[Any]) -> tuple[list[str] | None, Any]:
    if method == "ready":
        return None, None
    try:
        return None, getattr(engine, method)(*args)
    except Exception as error:  # it is raised again in the caller's process
        return [type(error).__name__, str(error)], None


def _exception(kind: str, text: str) -> WsyncError:
    """The package's own error of that name; any other kind as a plain ``WsyncError``."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, WsyncError):
        return known(text)
    return WsyncError(f"{kind}: {text}")
