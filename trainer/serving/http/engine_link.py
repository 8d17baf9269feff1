"""Calls over a local socket, from HTTP processes to that of the model.

A frame is its length, the number of the call, the length of a JSON header (4, 8 and 4 bytes, little-endian), the header
and the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
from pathlib import Path
from typing import Any

import orjson

from .service_call import Call, RefusalError, Reply, ServeOptions, refused

_FIXED = struct.Struct("<IQI")
_AGAIN = 0.05


def _frame(number: int, header: dict[str, Any], body: bytes) -> bytes:
    head = orjson.dumps(header)
    return _FIXED.pack(12 + len(head) + len(body), number, len(head)) + head + body


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any], bytes]:
    size, number, head = _FIXED.unpack(await reader.readexactly(_FIXED.size))
    rest = await reader.readexactly(size - 12)
    return number, orjson.loads(rest[:head]), rest[head:]


async def listen(handler: Any, path: Path) -> asyncio.AbstractServer:
    """Answer the calls that come over the socket at `path` with a handler."""

    async def answer(number: int, header: dict[str, Any], body: bytes, writer: asyncio.StreamWriter) -> None:
        reply = await handler.handle(Call(body=body, **header))
        head = {"status": reply.status, "media": reply.media, "headers": reply.headers}
        if not writer.is_closing():
            writer.write(_frame(number, head, reply.body))

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running: set[asyncio.Task] = set()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                task = asyncio.create_task(answer(*await _read(reader), writer))
                running.add(task)
                task.add_done_callback(running.discard)
        writer.close()

    return await asyncio.start_unix_server(connected, path)


class _Connection:
    """One connection with the calls that are under way on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, self._numbers = writer, itertools.count()
        self._open: dict[int, asyncio.Future[Reply]] = {}
        self.lost = False
        self._task = asyncio.create_task(self._receive(reader))

    def send(self, call: Call) -> asyncio.Future[Reply]:
        """Return a future of the reply; ConnectionError when the other process has ended."""
        if self.lost:
            raise ConnectionResetError
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._open[number] = future
        header = {"operation": call.operation, "media": call.media, "accept": call.accept, "logits": call.logits}
        self._writer.write(_frame(number, header | {"model": call.model, "version": call.version}, call.body))
        return future

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, header, body = await _read(reader)
                future = self._open.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(Reply(header["status"], body, header["media"], header["headers"]))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """End the connection; calls under way on it are lost."""
        self.lost = True
        self._writer.close()
        for future in self._open.values():
            if not future.done():
                future.set_exception(ConnectionResetError())
        self._open.clear()


class RemoteHandler:
    """Passes calls to the process that runs the model, also after its restart.

    A call that was lost with the process is sent again: a prediction changes nothing.
    """

    def __init__(self, path: Path, options: ServeOptions) -> None:
        self._path, self._options = path, options
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def start(self) -> None:
        """Do nothing: `send` connects when needed."""

    async def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    async def handle(self, call: Call) -> Reply:
        """Return the other process's reply; 503 while there is none."""
        until = time.monotonic() + (self._options.timeout if call.operation in ("predict", "infer") else 0)
        while True:
            try:
                return await (await self._connected()).send(call)
            except OSError:
                if time.monotonic() > until:
                    return refused(RefusalError(503, "the process that runs the model is being started", retry_after=1))
            await asyncio.sleep(_AGAIN)

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._connection is None or self._connection.lost:
                self._connection = _Connection(*await asyncio.open_unix_connection(self._path))
            return self._connection
