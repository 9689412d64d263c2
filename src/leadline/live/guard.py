"""Who may ask: pages and programs of this machine, with short questions. What a web site sends is refused.

Any site that a browser shows can send requests to the loopback interface. A site that gave its own name the address
127.0.0.1 still sends that name as Host; a script of another origin sends its Origin. Both are refused.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
