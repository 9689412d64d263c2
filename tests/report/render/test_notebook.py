"""What a notebook shows: valid, without scripts, small, and harmless whatever names it holds."""

from xml.etree import ElementTree

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.records import Outcome, Recipe, Trial
from leadline.records.repair import RepairReport
from tests.support import reports as samples
from tests.support.parsed_html import html_of, read

NAMES = ("sick", "healthy", "broken", "reviewed", "hostile", "thousand")


CARDS = {
    **{name: getattr(samples, name)() for name in NAMES},
    "step": samples.step(),
    "forecast": samples.forecast(),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_valid_and_has_no_scripts(name):
    made = CARDS[name]._repr_html_()
    tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(made).iter()}
    assert tags.isdisjoint({"script", "img", "iframe", "link", "a"})
    assert len(made) < 60_000


def test_a_repair_shows_its_trial_and_each_outcome():
    kept = Outcome(
        fix="critical-init",
        title="drawn anew",
        reach="init",
        answers=(),
        state="verified",
        why="lower",
        kept=True,
    )
    repair = RepairReport(
        leadline="0.1.0",
        before=samples.sick(),
        after=samples.healthy(),
        outcomes=(kept,),
        recipe=Recipe(leadline="0.1.0", model="M"),
        trial=Trial(untreated=(1.0, 1.0), treated=(1.0, 0.1)),
    )
    words = read(repair._repr_html_()).words
    assert words.startswith("REPAIRED: DOES NOT TRAIN → TRAINS, loss 1.00 → 0.100 after 2 steps")
    assert "the whole repair · loss by step" in words
    assert "critical-init, kept: drawn anew; lower" in words
    ElementTree.fromstring(repair._repr_html_())


def test_the_card_opens_with_the_verdict_and_names_the_root():
    words = read(samples.sick()._repr_html_()).words
    assert words.startswith("DOES NOT TRAIN: the gradient keeps 0.154")
    assert "error B201 gradient-decay" in words


def test_a_forecast_shows_its_map_of_depth_and_rate():
    words = read(samples.forecast()._repr_html_()).words
    assert "TRAINS UP TO DEPTH 16" in words
    assert "Safe rate over depth · dashed: the rate 0.00100" in words
    assert "predicted fall of the loss · ~ depth^+1.00" in words
    assert "go no <deeper>" in words
    assert "NO LIMIT IN SIGHT: up to depth 16" in read(samples.forecast(max_depth=None)._repr_html_()).words


def test_the_page_of_a_forecast_has_the_same_and_its_limits():
    words = read(html_of(samples.forecast())).words
    assert "TRAINS UP TO DEPTH 16" in words
    assert "beyond 8 with a warm-up" in words
    assert "go no <deeper>" in words


def test_a_report_shows_a_forecast_that_it_is_given(tmp_path):
    samples.healthy().to_html(tmp_path / "x.html", forecast=samples.forecast())
    assert "TRAINS UP TO DEPTH 16" in read((tmp_path / "x.html").read_text()).words


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x)


def traced(inputs):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Logarithm())
    return leadline.trace(model, inputs, loss=lambda out: out.mean())


def test_a_trace_is_a_card_that_names_the_op_of_the_first_non_finite_value():
    trace = traced(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    made = trace._repr_html_()
    tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(made).iter()}
    assert "script" not in tags
    assert "svg" in tags
    words = read(made).words
    assert words.startswith("Trace of Sequential: ")
    assert f"{len(trace.ops)} ops" in words
    assert "first non-finite value: op " in words
    assert ", log in layer 2" in words


def test_the_card_of_a_finite_trace_speaks_of_no_non_finite_value():
    trace = leadline.trace(nn.Linear(4, 4), torch.ones(2, 4), loss=lambda out: out.square().mean())
    words = read(trace._repr_html_()).words
    assert "non-finite" not in words
    assert "loss " in words
    assert "no backward pass" in read(replace(trace, loss=None)._repr_html_()).words


def test_the_repr_of_a_trace_is_one_short_line():
    assert repr(traced(torch.ones(2, 4))).startswith("<Trace of 'Sequential': ops=")
    assert len(repr(traced(torch.ones(2, 4)))) < 100
