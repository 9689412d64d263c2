"""The server stops on request and releases everything."""

from __future__ import annotations

import gc
import socket
import time
import warnings

from leadline.monitor.live import server
from leadline.monitor.live.server import HOST


def test_a_browser_that_stopped_reading_is_disconnected_silently(serve, run, monkeypatch, capfd):
    monkeypatch.setattr(server, "MAX_SHUTDOWN_SECONDS", 0.3)
    served = serve(run)
    with socket.socket() as deaf, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((HOST, served.port))
        deaf.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode() * 200)
        _wait_until_an_answer_is_held_up(served)
        served.stop()
        gc.collect()  # what was not closed says so here
    assert warned == []
    assert capfd.readouterr().err == ""


def _wait_until_an_answer_is_held_up(served) -> None:
    state = served.server.http.server_state
    for _ in range(300):
        if any(connection.transport.get_write_buffer_size() for connection in state.connections):
            return
        time.sleep(0.05)
    raise AssertionError("the answers all went out: ask for more of them")
