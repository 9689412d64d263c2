"""The arguments of `leadline.watch`: what each one accepts, and what `on_alert` does."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.errors import AlertError, InputError
from leadline.monitor.arguments import (
    alert_text,
    drop_escalation_clears,
    merge_alerts,
    require_number,
    validate_store,
)
from leadline.records.run import Alert
from tests.support.watched_training import count_hooks, small_training


def foreign() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def bad(tmp_path) -> dict[str, tuple[object, ...]]:
    model, optimizer, _ = small_training()
    return {
        "none of which is a parameter of this model": (model, foreign(), {}),
        "which has none": (nn.ReLU(), optimizer, {}),
        "a torch.nn.Module": (small_training, optimizer, {}),
        "an optimizer, or a list of optimizers": (model, [], {}),
        "the class SGD": (model, torch.optim.SGD, {}),
        "at most 1": (model, optimizer, {"budget": 3}),
        "above 0": (model, optimizer, {"budget": 0}),
        "at least 1": (model, optimizer, {"every": 0}),
        "which is a directory": (model, optimizer, {"store": tmp_path}),
        "on_alert as one of": (model, optimizer, {"on_alert": "shout"}),
    }


@pytest.mark.parametrize("words", bad(""))
def test_bad_input_is_refused_with_advice_and_leaves_no_hook(words: str, tmp_path):
    model, optimizer, choices = bad(tmp_path)[words]
    with pytest.raises(InputError, match=words):
        leadline.watch(model, optimizer, **choices)
    if isinstance(model, nn.Module) and isinstance(optimizer, torch.optim.Optimizer):
        assert count_hooks(model, optimizer) == 0


def test_a_closed_watch_refuses_to_be_used_again():
    model, optimizer, _ = small_training()
    w = leadline.watch(model, optimizer)
    w.close()
    w.close()
    with pytest.raises(InputError, match="closed"):
        w.loss(1.0)
    with pytest.raises(InputError, match="closed"), w:
        pass


@pytest.mark.parametrize("value", [None, "two", [2.0], torch.ones(1) * 1j], ids=repr)
def test_a_loss_that_is_not_a_number_raises_an_input_error(value):
    model, optimizer, x = small_training()
    with leadline.watch(model, optimizer) as w:
        for record in (w.loss, w.unclipped):
            with pytest.raises(InputError, match="as a tensor of one number, or a float"):
                record(value)
        model(x).mean().backward()
        optimizer.step()
    assert (w.trouble, w.step) == ("", 1)


def test_a_wrapped_optimizer_is_watched_inside_its_wrapper():
    class Wrapper(torch.optim.Optimizer):
        """An optimizer by type that only refers to another one, like Accelerate's."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)

    model, optimizer, x = small_training()
    with leadline.watch(model, [Wrapper(optimizer), optimizer]) as w:
        model(x).mean().backward()
        optimizer.step()
        assert (w.step, len(optimizer._optimizer_step_pre_hooks)) == (1, 1), "one optimizer, given twice"
    assert "at step 1, closed, 0 alerts" in repr(w)


def test_a_tilde_in_the_store_is_expanded_and_a_foreign_file_left_unchanged(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model, optimizer, _ = small_training()
    leadline.watch(model, optimizer, store="~/run.leadline").close()
    assert (tmp_path / "run.leadline").exists()
    (tmp_path / "notes.txt").write_text("no run at all")
    with pytest.raises(InputError, match="name another file"):
        leadline.watch(model, optimizer, store=tmp_path / "notes.txt")
    with pytest.raises(InputError, match="an empty path"):
        leadline.watch(model, optimizer, store="")


@pytest.mark.parametrize("store", [3, ["run.leadline"]], ids=str)
def test_a_store_that_is_not_a_path_is_refused(store):
    with pytest.raises(InputError, match="the path of a file"):
        validate_store(store)


def alert(severity: str = "error", **changes: object) -> Alert:
    plain = Alert(code="T801", name="spike", severity=severity, message="it rose", since=3, step=4)
    return replace(plain, **changes)


@pytest.mark.parametrize("how", ["log", "raise", "stop", "function"])
def test_an_alert_causes_the_requested_action(how: str, caplog):
    model, optimizer, _ = small_training()
    heard = []
    w = leadline.watch(model, optimizer, on_alert=heard.append if how == "function" else how)
    w._steps.new_alerts = [alert()]
    if how == "raise":
        with pytest.raises(AlertError, match="spike") as caught:
            optimizer.step()
        assert caught.value.alert.code == "T801"
    else:
        optimizer.step()
    assert w.stopped == (how == "stop")
    assert [each.code for each in heard] == (["T801"] if how == "function" else [])
    assert ("T801 spike: it rose" in caplog.text) == (how != "function")
    w.close()


def test_a_warning_raises_nothing():
    model, optimizer, _ = small_training()
    with leadline.watch(model, optimizer, on_alert="raise") as w:
        w._steps.new_alerts = [alert("warning")]
        optimizer.step()


def test_an_escalated_alert_is_not_reported_as_over():
    escalation = [alert(code="T804", state="cleared"), alert(code="T804", state="raised")]
    alerts = [*escalation, alert(state="cleared")]
    assert drop_escalation_clears(alerts) == alerts[1:]


def test_a_raised_alert_is_logged_with_its_place_and_forecast():
    raised = alert(where="head", step=9, state="raised", forecast="NaN soon")
    assert alert_text(raised) == "step 9: T801 spike (head): it rose; NaN soon"


def test_a_cleared_alert_is_logged_as_over():
    assert alert_text(alert(step=9, state="cleared")) == "step 9: T801 spike is over"


@pytest.mark.parametrize("value", [1, 2.5, True, torch.tensor(3.0), "4.5"])
def test_a_real_number_in_any_form_is_a_number(value: object):
    require_number(value, "loss")


@pytest.mark.parametrize("value", [torch.tensor(1j), "much", None, [1.0]])
def test_what_is_no_real_number_is_refused(value: object):
    with pytest.raises(InputError, match="loss"):
        require_number(value, "loss")


def test_an_alert_that_was_cleared_but_never_raised_is_left_out():
    def alert(code: str, state: str, step: int) -> Alert:
        return Alert(
            code=code, name="", severity="warning", since=step, step=step, message="", action="", state=state
        )

    changes = [alert("T801", "cleared", 1), alert("T802", "raised", 2), alert("T802", "cleared", 5)]
    assert [(each.code, each.state) for each in merge_alerts(changes)] == [("T802", "cleared")]


def test_a_watch_says_whether_it_is_open():
    model, optimizer, _ = small_training()
    with leadline.watch(model, optimizer) as w:
        assert repr(w) == "<leadline.Watch at step 0, open, 0 alerts>"
    assert repr(w) == "<leadline.Watch at step 0, closed, 0 alerts>"
    assert w.unclipped(2.5) == 2.5
