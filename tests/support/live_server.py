"""Servers on the loopback interface, and runs to show."""

from __future__ import annotations

import json
import math
import threading
from array import array
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from leadline.monitor.live.server import LiveServer, prepare_server
from leadline.monitor.runfile import Writer
from leadline.records.run import Alert, Event, RunInfo

BLOCKS = 4


def put(writer: Writer, step: int, loss: float | None = None) -> None:
    norms = array("f", [1.0 + step, 2.0, math.nan, -1.0])
    scalars = {
        "loss": 3.0 - step / 100 if loss is None else loss,
        "step_seconds": 0.1,
        "watch_seconds": 0.001,
        "overhead": 0.01,
    }
    writer.put(step, scalars, {"grad_norm": ("blocks", norms)})


def begin(path: Path, steps: int = 10, model: str = "Net") -> Writer:
    """An open writer after its first steps."""
    writer = Writer(path, RunInfo(model=model, parameters=10, budget=0.01))
    writer.axis("blocks", [f"block {place}" for place in range(BLOCKS)])
    for step in range(steps):
        put(writer, step)
    writer.flush()
    return writer


def row(length: int, step: int) -> array[float]:
    return array("f", (1.0 + place + step for place in range(length)))


def alert(step: int, state: str = "raised") -> Alert:
    return Alert(
        code="T801",
        name="loss-spike",
        severity="error",
        message="it jumped",
        since=step,
        step=step,
        state=state,
    )


def event(step: int, kind: str = "intervention") -> Event:
    return Event(step=step, time=0.0, kind=kind, message="clipped")


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of ten steps that has ended."""
    path = tmp_path / "run.leadline"
    begin(path).close()
    return path


@pytest.fixture
def serve():
    """`serve(paths, port)` starts a server; `.stop()` of what it returns ends it."""
    with ExitStack() as stack:

        def start(*paths: Path, port: int = 0) -> Serving:
            serving = Serving(prepare_server(paths, port))
            stack.callback(serving.stop)
            return serving

        yield start


class Serving:
    def __init__(self, server: LiveServer) -> None:
        self.server, self.url = server, server.url
        self.port = urlsplit(server.url).port
        self._thread = threading.Thread(target=server.run)
        self._thread.start()

    def stop(self) -> None:
        self.server.http.should_exit = True
        self._thread.join()

    def ask(self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str):
        """Status, headers and text of the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(
            method, path, body, {name.replace("_", "-"): said for name, said in headers.items()}
        )
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def listen(self, after: str = "", *, by_header: bool = False) -> Listener:
        return Listener(self.port, after, by_header=by_header)


class Listener:
    """One connection to the stream."""

    def __init__(self, port: int, after: str, *, by_header: bool) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=20)
        path = f"/stream?after={after}" if after and not by_header else "/stream"
        self._connection.request("GET", path, headers={"Last-Event-ID": after} if by_header else {})
        self._answer = self._connection.getresponse()
        self.token = ""

    def next(self):
        """The next message."""
        while line := self._answer.readline().decode().rstrip("\r\n"):
            if line.startswith("id: "):
                self.token = line[4:]
            if line.startswith("data: "):
                message = json.loads(line[6:])
        return message if "message" in locals() else self.next()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
