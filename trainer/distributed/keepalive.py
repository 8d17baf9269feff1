"""Connections that may be silent for long, and whose other end may lose its power meanwhile."""

from __future__ import annotations

import socket

SILENCE_SECONDS = 10  # until the kernel gives up a machine that does not answer


def notice_silence(connection: socket.socket) -> None:
    """Turn on keepalive probes, which end the connection when the other machine does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_SECONDS)
