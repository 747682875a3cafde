"""``EngineClient`` over a Ray actor."""

from typing import Any

import ray

from wsync_lab.errors import PeerLost, WsyncError


class RayEngineClient:
    """The trainer's handle on the engine actor of its slot."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def submit(self, method: str, *args: Any) -> "RayCall":
        return RayCall(self._actor.call.remote(method, *args))


class RayCall:
    """A call under way; see ``protocol.carrier.Pending``."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self, timeout_s: float) -> Any:
        try:
            return ray.get(self._reference, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(f"no answer from the engine in {timeout_s:g} s") from None
        except ray.exceptions.RayTaskError as error:
            raise original(error) from None
        except ray.exceptions.RayActorError as error:
            raise PeerLost(f"the engine's actor is gone: {in_one_line(error)}") from None


def original(error: Any) -> Exception:
    """The package's own error inside Ray's, which would be caught by neither type alone."""
    cause = error.cause
    return type(cause)(str(cause)) if isinstance(cause, WsyncError) else WsyncError(in_one_line(cause))


def in_one_line(error: BaseException) -> str:
    """``Type: text``. Ray's errors end with what the remote traceback ends with: the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    which = -1 if isinstance(error, ray.exceptions.RayError) else 0
    return f"{type(error).__name__}: {lines[which] if lines else ''}"
