"""The live page: routes, request guard, event stream and the server process, on the loopback interface only."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from anyio.to_thread import run_sync
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leadline import __version__
from leadline.errors import InputError, LeadlineError
from leadline.monitor.live.checks import moment, profiles
from leadline.monitor.live.messages import window
from leadline.monitor.live.run_list import Shelf
from leadline.records import spell
from leadline.report.html.page import CHARTS, REPORT, STYLES, Kit, fill
from leadline.text import clean

LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
LONGEST = 2048  # bytes of an address with its question; ours: the longest that a page sends has below 300
LARGEST_HEAD = 16 * 1024  # bytes of all headers; ours: what browsers send is below 4 kB
FRAMES = "frame-ancestors 'self' http://127.0.0.1:* http://localhost:* vscode-webview:"  # notebooks

HEADERS = (
    (b"content-security-policy", FRAMES.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Refuses before anything is read; adds headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refused = refusal(scope)
        answer = self.app if refused is None else PlainTextResponse(refused[1] + "\n", status_code=refused[0])
        await answer(scope, receive, _with_headers(send))


def refusal(scope: Scope) -> tuple[int, str] | None:
    """Status and reason, or None for a request that is answered."""
    headers = Headers(scope=scope)
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return 405, "only GET"
    if _name(headers.get("host", "")) not in LOCAL:
        return 403, "this page is for this machine only"
    if not _is_own(headers):
        return 403, "not for other sites"
    if len(scope["raw_path"] or b"") + len(scope["query_string"]) > LONGEST:
        return 414, "too long"
    if sum(len(name) + len(said) for name, said in scope["headers"]) > LARGEST_HEAD:
        return 431, "too many headers"
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return 413, "a question has no body"
    return None


def _is_own(headers: Headers) -> bool:
    """From the page itself, from a program, or someone opening it: in a tab, or as a frame."""
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{headers['host']}":
        return False
    opened = headers.get("sec-fetch-mode") == "navigate"
    return opened or headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _name(host: str) -> str:
    """The host without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return sending


# News of the runs as server-sent events; each carries the cursor from which a browser goes on.

POLL_SECONDS = 0.5  # ours: what comes twice a second looks live, and a look costs two short queries
RETRY_MS = 1000  # how long a browser waits before it connects again

Sent = dict[str, str | int]


async def events(shelf: Shelf, token: str, is_leaving: Callable[[], bool]) -> AsyncIterator[Sent]:
    """What the token does not cover yet, then what is written from now on, until the server leaves."""
    marks = shelf.marks(token)
    while not is_leaving():
        for place, book in enumerate(shelf.books):
            message, marks[place] = await run_sync(book.news, marks[place])
            if message is not None:
                data = json.dumps(spell({"run": place, **message}), allow_nan=False, separators=(",", ":"))
                yield {"id": shelf.token(marks), "data": data, "retry": RETRY_MS}
        await anyio.sleep(POLL_SECONDS)


# The page itself: the charts and styles of the static report, and scripts of its own that follow the stream.

HERE = Path(__file__).parent
STATIC = HERE / "static"
LIVE = Kit(
    scripts=(*CHARTS, STATIC / "heat.js", STATIC / "memory.js", STATIC / "notes.js", STATIC / "live.js"),
    styles=(*STYLES, STATIC / "live.css"),
    templates=(HERE / "templates", *REPORT.templates),
    rules=("connect-src 'self'",),
)


def page(shelf: Shelf) -> str:
    """Everything but the numbers, which come by the stream."""
    names = [clean(book.path.name) for book in shelf.books]
    return fill("live.html", names, kit=LIVE, title=f"Leadline: {', '.join(names)}", version=__version__)


# The addresses of the live page. Runs are named by their place: no address holds a path of a file.
#
# /                        the page
# /stream                  news; goes on behind the header Last-Event-ID, or ?after=
# /runs/0/check?step=N     depth profiles of the stored check nearest to a step
# /runs/0/report?step=N    the same check as a static page, to save

PING_SECONDS = 15  # ours: a connection that is gone is noticed within this


def make_app(shelf: Shelf, is_leaving: Callable[[], bool]) -> Starlette:
    """The page of these runs. Streams end when the server is leaving: it would wait for them."""

    async def show(_: Request) -> Response:
        return HTMLResponse(page(shelf))

    async def stream(request: Request) -> Response:
        token = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventSourceResponse(events(shelf, token, is_leaving), ping=PING_SECONDS)

    async def check(request: Request) -> Response:
        found = await run_sync(profiles, *_asked(shelf, request, "step"))
        return JSONResponse(spell(found))

    async def closer(request: Request) -> Response:
        found = await run_sync(window, *_asked(shelf, request, "first", "last"))
        return JSONResponse(spell(found))

    async def report(request: Request) -> Response:
        name, text = await run_sync(moment, *_asked(shelf, request, "step"))
        return HTMLResponse(text, headers={"content-disposition": f'attachment; filename="{name}"'})

    return Starlette(
        routes=[
            Route("/", show),
            Route("/stream", stream),
            Route("/runs/{place:int}/window", closer),
            Route("/runs/{place:int}/check", check),
            Route("/runs/{place:int}/report", report),
        ],
        middleware=[Middleware(Guard)],
        exception_handlers={LeadlineError: _unreadable},
    )


def _asked(shelf: Shelf, request: Request, *names: str) -> tuple[Any, ...]:
    """The run of an address, and the steps that it names."""
    place = request.path_params["place"]
    if place >= len(shelf.books):
        raise HTTPException(404)
    said = [request.query_params.get(name, "") for name in names]
    if not all(each.isascii() and each.isdigit() and len(each) < 19 for each in said):
        raise HTTPException(400, f"{' and '.join(names)}: numbers of steps")
    return shelf.books[place].read(), *map(int, said)


async def _unreadable(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", status_code=409)


# The server: one process, on the loopback interface only.

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
