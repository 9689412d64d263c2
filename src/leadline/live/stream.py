"""News of the runs as server-sent events; each carries the cursor from which a browser goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import anyio
from anyio.to_thread import run_sync

from leadline.live.shelf import Shelf
from leadline.records import spell

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
