"""Connections on which nothing may be said for a long time, and whose other end may lose its power meanwhile."""

from __future__ import annotations

import socket

SILENCE_SECONDS = 10  # until the kernel gives up a machine that does not answer


def notice_silence(connection: socket.socket) -> None:
    """Let the kernel ask the other machine whether it is there, and end the connection when it does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_USER_TIMEOUT": 1000 * SILENCE_SECONDS}
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
