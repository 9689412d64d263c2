"""The server: one process, on the loopback interface only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from leadline.errors import InputError
from leadline.live.app import make_app
from leadline.live.guard import LARGEST_HEAD
from leadline.live.shelf import Shelf

HOST = "127.0.0.1"
MOST_CONNECTIONS = 64  # ours: a few tabs; each has one stream
FAREWELL_SECONDS = 3  # ours: streams end within a look at the file; who takes longer is hung up on


class Runner(uvicorn.Server):
    """Leaves no connection behind, not of a browser that has stopped reading, nor one that came last."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        hanging_up = asyncio.create_task(self._hang_up())
        await super().shutdown(sockets)
        hanging_up.cancel()

    async def _hang_up(self) -> None:
        await asyncio.sleep(FAREWELL_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that holds its port and does not answer yet."""

    url: str
    runner: Runner
    listening: socket.socket
    shelf: Shelf

    def run(self) -> None:
        """Answer until interrupted."""
        try:
            self.runner.run(sockets=[self.listening])
        finally:
            self.listening.close()
            self.shelf.close()


def prepare(paths: Sequence[Path], port: int = 0) -> Server:
    """Open the runs and take the port; 0 is any that is free."""
    shelf = Shelf(paths)
    try:
        listening = _listen(port)
    except BaseException:
        shelf.close()
        raise
    config = uvicorn.Config(
        make_app(shelf, lambda: runner.should_exit),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        timeout_graceful_shutdown=2 * FAREWELL_SECONDS,  # answers end soon after we hang up
        http="h11",
        ws="none",
    )
    runner = Runner(config)
    url = f"http://{HOST}:{listening.getsockname()[1]}/"
    return Server(url=url, runner=runner, listening=listening, shelf=shelf)


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # whoever asks before the server runs is answered when it does
    except OSError as error:
        listening.close()
        raise InputError(
            expected=f"a free port on {HOST}",
            got=f"{port}: {error.strerror}",
            fix="leave --port out: a free one is taken and printed",
        ) from None
    return listening
