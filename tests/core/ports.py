"""Ports for the process groups of tests."""

import socket


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
