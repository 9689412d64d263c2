"""The addresses of the live page. Runs are named by their place: no address holds a path of a file.

/                        the page
/stream                  news; goes on behind the header Last-Event-ID, or ?after=
/runs/0/check?step=N     depth profiles of the stored check nearest to a step
/runs/0/report?step=N    the same check as a static page, to save
"""

from __future__ import annotations

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
from leadline.live.page import page
from leadline.live.shelf import Shelf
from leadline.live.stream import events
from leadline.records import spell
from leadline.runs.reading import Run

PING_SECONDS = 15  # ours: a connection that is gone is noticed within this


def make_app(shelf: Shelf) -> Starlette:
    """The page of these runs."""

    async def show(_: Request) -> Response:
        return HTMLResponse(page(shelf))

    async def stream(request: Request) -> Response:
        token = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventSourceResponse(events(shelf, token), ping=PING_SECONDS)

    async def check(request: Request) -> Response:
        found = await run_sync(profiles, *_asked(shelf, request))
        return JSONResponse(spell(found))

    async def report(request: Request) -> Response:
        name, text = await run_sync(moment, *_asked(shelf, request))
        return HTMLResponse(text, headers={"content-disposition": f'attachment; filename="{name}"'})

    return Starlette(
        routes=[
            Route("/", show),
            Route("/stream", stream),
            Route("/runs/{place:int}/check", check),
            Route("/runs/{place:int}/report", report),
        ],
        middleware=[Middleware(Guard)],
        exception_handlers={LeadlineError: _unreadable},
    )


def _asked(shelf: Shelf, request: Request) -> tuple[Run, int]:
    """The run and the step of an address."""
    place, step = request.path_params["place"], request.query_params.get("step", "")
    if place >= len(shelf.books):
        raise HTTPException(404)
    if not (step.isascii() and step.isdigit() and len(step) < 19):
        raise HTTPException(400, "step: a number")
    return shelf.books[place].read(), int(step)


async def _unreadable(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", status_code=409)
