"""A lock for which an update does not wait behind one request after another."""

import threading


class FairLock:
    """A thread that releases it and takes it again at once lets those that wait go first."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def acquire(self) -> None:
        with self._next:  # free while another thread holds the lock: one that waits gets it
            self._held.acquire()

    def release(self) -> None:
        self._held.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
