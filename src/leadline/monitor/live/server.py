"""The server of the live page: routes, request guard and event stream, on the loopback interface only."""

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
from leadline.monitor.live.messages import window_message
from leadline.monitor.live.run_list import RunList
from leadline.monitor.live.stored_checks import depth_profiles, static_report
from leadline.records import spell
from leadline.report.render.html import CHART_SCRIPTS, REPORT_KIT, STYLES, Kit, fill
from leadline.text import clean

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
# Heuristic: bytes of path and query; the longest that a page sends has fewer than 300.
MAX_URL_BYTES = 2048
# Heuristic: bytes of all headers; browsers send fewer than 4 kB.
MAX_HEADER_BYTES = 16 * 1024
# Notebooks may show the page in a frame.
FRAME_ANCESTORS = "frame-ancestors 'self' http://127.0.0.1:* http://localhost:* vscode-webview:"

HEADERS = (
    (b"content-security-policy", FRAME_ANCESTORS.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class RequestGuard:
    """Refuses requests before anything is read, and adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refused = refusal(scope)
        app = self.app if refused is None else PlainTextResponse(refused[1] + "\n", status_code=refused[0])
        await app(scope, receive, _with_headers(send))


def refusal(scope: Scope) -> tuple[int, str] | None:
    """Return status and reason of a refused request; None if it is accepted."""
    headers = Headers(scope=scope)
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return 405, "only GET requests are accepted"
    if _host_name(headers.get("host", "")) not in LOCAL_HOSTS:
        return 403, "this page is available on this machine only"
    if not _is_same_site(headers):
        return 403, "requests from other sites are refused"
    if len(scope["raw_path"] or b"") + len(scope["query_string"]) > MAX_URL_BYTES:
        return 414, "the URL is too long"
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        return 431, "the headers are too long"
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return 413, "requests must not have a body"
    return None


def _is_same_site(headers: Headers) -> bool:
    """True for a request of the page itself, of a program, or of a user who opens it in a tab or frame."""
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{headers['host']}":
        return False
    is_opened = headers.get("sec-fetch-mode") == "navigate"
    return is_opened or headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _host_name(host: str) -> str:
    """Return the host without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return send_with_headers


# Updates of the runs as server-sent events; each carries the cursor from which a browser continues.

# Heuristic: two updates per second look live, and each costs two short queries.
POLL_SECONDS = 0.5
# Heuristic: milliseconds that a browser waits before it reconnects.
RETRY_MS = 1000

ServerEvent = dict[str, str | int]


async def events(runs: RunList, token: str, is_stopping: Callable[[], bool]) -> AsyncIterator[ServerEvent]:
    """Yield what the token does not cover yet, then what is written from now on, until the server stops."""
    cursors = runs.cursors(token)
    while not is_stopping():
        for index, run in enumerate(runs.runs):
            message, cursors[index] = await run_sync(run.update, cursors[index])
            if message is not None:
                data = json.dumps(spell({"run": index, **message}), allow_nan=False, separators=(",", ":"))
                yield {"id": runs.token(cursors), "data": data, "retry": RETRY_MS}
        await anyio.sleep(POLL_SECONDS)


# The page: the charts and styles of the static report, and its own scripts that follow the stream.

HERE = Path(__file__).parent
STATIC = HERE / "static"
LIVE = Kit(
    scripts=(
        *CHART_SCRIPTS,
        STATIC / "heat.js",
        STATIC / "memory.js",
        STATIC / "notes.js",
        STATIC / "live.js",
    ),
    styles=(*STYLES, STATIC / "live.css"),
    templates=(HERE / "templates", *REPORT_KIT.templates),
    policies=("connect-src 'self'",),
)


def page(runs: RunList) -> str:
    """Return the HTML of the page without numbers, which come by the stream."""
    names = [clean(run.path.name) for run in runs.runs]
    return fill("live.html", names, kit=LIVE, title=f"Leadline: {', '.join(names)}", version=__version__)


# The routes of the live page. Runs are named by their index, so no URL contains the path of a file.
#
# /                            the page
# /stream                      updates after the header Last-Event-ID, or after ?after=
# /runs/0/window?first=&last=  the numbers of a range of steps at the page's resolution
# /runs/0/check?step=N         depth profiles of the stored check nearest to a step
# /runs/0/report?step=N        the same check as a static page, to save

# Heuristic: seconds between pings; a lost connection is noticed within this time.
PING_SECONDS = 15


def make_app(runs: RunList, is_stopping: Callable[[], bool]) -> Starlette:
    """Return the page's application. Its streams end when the server stops, which would otherwise wait for them."""

    async def show(_: Request) -> Response:
        return HTMLResponse(page(runs))

    async def stream(request: Request) -> Response:
        token = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventSourceResponse(events(runs, token, is_stopping), ping=PING_SECONDS)

    async def check(request: Request) -> Response:
        profiles = await run_sync(depth_profiles, *_run_and_steps(runs, request, "step"))
        return JSONResponse(spell(profiles))

    async def window(request: Request) -> Response:
        message = await run_sync(window_message, *_run_and_steps(runs, request, "first", "last"))
        return JSONResponse(spell(message))

    async def report(request: Request) -> Response:
        name, text = await run_sync(static_report, *_run_and_steps(runs, request, "step"))
        return HTMLResponse(text, headers={"content-disposition": f'attachment; filename="{name}"'})

    return Starlette(
        routes=[
            Route("/", show),
            Route("/stream", stream),
            Route("/runs/{index:int}/window", window),
            Route("/runs/{index:int}/check", check),
            Route("/runs/{index:int}/report", report),
        ],
        middleware=[Middleware(RequestGuard)],
        exception_handlers={LeadlineError: _unreadable},
    )


def _run_and_steps(runs: RunList, request: Request, *names: str) -> tuple[Any, ...]:
    """Return the run of a request and the steps that its query names."""
    index = request.path_params["index"]
    if index >= len(runs.runs):
        raise HTTPException(404)
    values = [request.query_params.get(name, "") for name in names]
    if not all(each.isascii() and each.isdigit() and len(each) < 19 for each in values):
        raise HTTPException(400, f"{' and '.join(names)} must be step numbers")
    return runs.runs[index].read(), *map(int, values)


async def _unreadable(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", status_code=409)


# The server: one process, on the loopback interface only.

HOST = "127.0.0.1"
# Heuristic: connections at the same time; a few tabs, each with one stream.
MAX_CONNECTIONS = 64
# Heuristic: seconds before open connections are aborted; streams end within one poll.
MAX_SHUTDOWN_SECONDS = 3


class HttpServer(uvicorn.Server):
    """A server that aborts every open connection when it stops, even if the browser no longer reads."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        abort = asyncio.create_task(self._abort_connections())
        await super().shutdown(sockets)
        abort.cancel()

    async def _abort_connections(self) -> None:
        await asyncio.sleep(MAX_SHUTDOWN_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """The live page's server, which holds its port and does not answer before `run`."""

    url: str
    http: HttpServer
    listener: socket.socket
    runs: RunList

    def run(self) -> None:
        """Answer requests until interrupted."""
        try:
            self.http.run(sockets=[self.listener])
        finally:
            self.listener.close()
            self.runs.close()


def prepare_server(paths: Sequence[Path], port: int = 0) -> LiveServer:
    """Open the runs and bind the port; 0 takes any free port."""
    runs = RunList(paths)
    try:
        listener = _listen(port)
    except BaseException:
        runs.close()
        raise
    config = uvicorn.Config(
        make_app(runs, lambda: http.should_exit),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=2 * MAX_SHUTDOWN_SECONDS,  # responses end soon after the abort
        http="h11",
        ws="none",
    )
    http = HttpServer(config)
    url = f"http://{HOST}:{listener.getsockname()[1]}/"
    return LiveServer(url=url, http=http, listener=listener, runs=runs)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # earlier requests wait until the server runs
    except OSError as error:
        listener.close()
        raise InputError(
            expected=f"a free port on {HOST}",
            got=f"{port}: {error.strerror}",
            fix="leave out --port to take a free port, which is printed",
        ) from None
    return listener
