"""What is written to a run file is what is read from it."""

from __future__ import annotations

import math
from array import array

from leadline.monitor.runfile import Run, Writer
from leadline.records.run import Alert, Event, RunInfo

INFO = RunInfo(model="Net", optimizer="Adam", parameters=10)
ALERT = Alert(
    code="T801", name="spike", severity="error", message="up", since=1, step=2, evidence={"ratio": math.inf}
)
EVENT = Event(step=2, time=5.0, kind="sample", message="traced", data={"cost": 1})


def test_everything_written_is_read_back(tmp_path):
    writer = Writer(tmp_path / "a.leadline", INFO)
    writer.axis("blocks", ["one", "two"])
    writer.put(0, {"loss": 2.5, "grad_norm": math.nan}, {"grad_norm": ("blocks", array("f", [1, math.inf]))})
    writer.put(2, {"loss": 0.1})
    writer.alert(ALERT)
    writer.event(EVENT)
    writer.report(2, "{}")
    writer.close()

    run = Run(tmp_path / "a.leadline")
    assert run.info.model == "Net"
    assert run.axes == {"blocks": ("one", "two")}
    assert run.metrics == {"loss": None, "grad_norm": "blocks"}
    assert run.steps == [0, 2]
    assert run.scalars("loss") == ([0, 2], [2.5, 0.1])
    assert run.scalars("loss", since=1) == ([2], [0.1])
    assert math.isnan(run.scalars("grad_norm")[1][0])
    assert run.vectors("grad_norm") == ([0], [array("f", [1, math.inf])])
    assert run.alerts() == [ALERT]
    assert run.events() == [EVENT]
    assert run.reports == [2]
    assert run.report(2) == "{}"
    changes = run.since(0)
    assert changes.cursor == run.cursor
    assert changes.scalars["loss"] == ([0, 2], [2.5, 0.1])
    assert changes.alerts == (ALERT,)
    assert run.since(run.cursor).scalars == {}
