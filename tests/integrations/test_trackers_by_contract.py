"""What the sinks of trackers that may not be installed send, recorded by a stand-in client."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from leadline.integrations._session import WatchSession
from leadline.integrations.sinks import MLflowSink, WandbSink
from leadline.records.run import Alert

ALERT = Alert(
    code="T801", name="toy", severity="warning", message="odd", where="", since=0, step=1, state="raised"
)


class RecordingClient:
    """Records every method call with its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.summary: dict[str, Any] = {}

    def __getattr__(self, name: str):
        return lambda *args, **named: self.calls.append((name, (*args, *named.values())))


def test_mlflow_gets_metrics_with_their_step_a_picture_and_all_alerts_so_far():
    client = RecordingClient()
    sink = MLflowSink(client, "run-1")
    sink.numbers(7, {"leadline/loss": 0.5})
    sink.picture(7, "image")
    sink.alert(ALERT)
    sink.alert(ALERT)
    sink.close()
    (metric, picture, _, alerts) = client.calls
    assert metric[0] == "log_metric"
    assert (metric[1][:3], metric[1][4]) == (("run-1", "leadline/loss", 0.5), 7)
    assert picture == ("log_image", ("run-1", "image", "leadline_depth_profile_00000007.png"))
    assert alerts[1][1].count("T801") == 2


def test_wandb_gets_numbers_over_a_separate_step_and_alerts_in_the_summary(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Image=lambda image: ("image of", image)))
    run = RecordingClient()
    sink = WandbSink(run)
    sink.numbers(7, {"leadline/loss": 0.5})
    sink.picture(8, "pixels")
    sink.alert(ALERT)
    sink.close()
    assert [name for name, _ in run.calls] == ["define_metric", "define_metric", "log", "log"]
    assert run.calls[2][1] == ({"leadline/loss": 0.5, "leadline/step": 7},)
    assert ("image of", "pixels") in run.calls[3][1][0].values()
    assert len(run.summary["leadline/alerts_told"]) == 1


def test_a_session_that_never_started_can_be_pushed_and_closed():
    session = WatchSession(store=None, budget=0.01, every=None, on_alert="log", sinks=(), push_every=10)
    assert session.push() is False
    session.close()
    assert session.watch is None
