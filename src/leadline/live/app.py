"""The addresses of the live page. Runs are named by their place: no address holds a path of a file.

/                        the page
/stream                  news; goes on behind the header Last-Event-ID, or ?after=
/runs/0/check?step=N     depth profiles of the stored check nearest to a step
/runs/0/report?step=N    the same check as a static page, to save
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyio.to_thread import run_sync
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from leadline.errors import LeadlineError
from leadline.live.checks import moment, profiles
from leadline.live.guard import Guard
from leadline.live.messages import window
from leadline.live.page import page
from leadline.live.shelf import Shelf
from leadline.live.stream import events
from leadline.records import spell

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
