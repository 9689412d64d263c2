"""A real server on the loopback interface against what is no request, and against too many of them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from leadline.monitor.live.server import MAX_CONNECTIONS, MAX_HEADER_BYTES, prepare_server
from tests.support.live_server import Serving, begin

TELL = b"Connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "run.leadline"
    begin(path).close()
    serving = Serving(prepare_server([path]))
    yield serving
    serving.stop()


def status(port: int, sent: bytes) -> int | None:
    """Of the answer to these bytes; None if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(sent)
        answer = connection.makefile("rb").readline()
    return int(answer.split()[1]) if answer else None


REQUESTS = {
    "no HTTP": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
    "a binary path": b"GET /\xff\0\x1b[2J HTTP/1.1\r\nHost: 127.0.0.1\r\n" + TELL,
    "no host": b"GET / HTTP/1.1\r\n" + TELL,
    "two hosts": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n" + TELL,
    "two hosts, turned": b"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n" + TELL,
    "a host with a user": b"GET / HTTP/1.1\r\nHost: 127.0.0.1:80@evil.example\r\n" + TELL,
    "a host of a newer protocol": b"GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\n" + TELL,
    "a body that is negative": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n" + TELL,
    "a body in pieces": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n" + TELL + b"1\r\nx\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nContent-Length: 9\r\n" + TELL,
    "a head without end": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * (2 * MAX_HEADER_BYTES),
    "a tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n" + TELL,
    "a socket": b"GET / HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "a null origin": b"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n" + TELL,
    "a path of a file": b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n" + TELL,
    "a path with backslashes": b"GET /..\\..\\etc\\passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n" + TELL,
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_foreign_request_is_refused_and_the_server_continues(served, name):
    found = status(served.port, REQUESTS[name])
    assert found is None or 400 <= found < 500
    assert served.ask("/")[0] == 200


def test_too_many_connections_are_refused_until_some_are_gone(served):
    with ExitStack() as held:
        for _ in range(MAX_CONNECTIONS):
            held.enter_context(served.listen())
        assert served.ask("/")[0] == 503
    for _ in range(100):
        code = served.ask("/")[0]
        if code == 200:
            break
    assert code == 200
