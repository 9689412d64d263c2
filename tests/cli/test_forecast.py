"""`leadline forecast`: a family of networks from a file, as a page or as JSON."""

import json

import pytest

from leadline.report.formats import FORECAST_FORMATS
from leadline.report.look import Look
from tests.support.reports import forecast

FAMILY = """
import torch
from torch import nn

def build(depth):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(8, 2))
    print("building", depth)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, torch.randn(16, 8), torch.randint(2, (16,)), nn.functional.cross_entropy, adam

def one():
    return build(12)

def two(depth, width):
    return build(depth)

def wide(width, batch=16):
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    return model, torch.randn(batch, 8), torch.randint(2, (batch,)), nn.functional.cross_entropy, adam

def without(depth):
    return build(depth)[:4]
"""


@pytest.fixture
def family(tmp_path):
    path = tmp_path / "family.py"
    path.write_text(FAMILY)
    return path


def test_a_family_is_forecast_as_a_page(run, family):
    done = run("forecast", f"{family}:build", "--depths", "2,4,8", "--seeds", "2")
    assert done.code == 0
    assert done.out.startswith("TRAINS UP TO DEPTH")
    assert "building 4" in done.err


def test_json_is_the_record(run, family):
    done = run("forecast", f"{family}:build", "--depths", "2,4", "--seeds", "1", "--format", "json")
    found = json.loads(done.out)
    assert found["schema"] == "leadline.forecast/1"
    assert [point["depth"] for point in found["points"]] == [2, 4]


def test_widths_and_batches_are_measured_beside_the_length_of_the_run(run, family):
    options = ("--widths", "8,16", "--batches", "8,16", "--steps", "500", "--seeds", "1")
    done = run("forecast", f"{family}:wide", *options, "--format", "json")
    found = json.loads(done.out)
    assert [law["axis"] for law in found["laws"]] == ["width", "batch"]
    assert found["decay_memory"]["steps"] == 500


def test_a_factory_without_arguments_is_extrapolated_from_its_blocks(run, family):
    done = run("forecast", f"{family}:one")
    assert done.code == 0
    assert "extrapolated" in done.out


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("two", (), "widths=(...)"),
        ("without", (), "optimizer"),
        ("build", ("--depths", "8,4"), "increasing"),
        ("build", ("--depths", "few"), "whole numbers"),
        ("build", ("--widths", "8,16"), "argument width"),
        ("one", ("--batches", "8,16"), "argument batch"),
        ("wide", (), "pass widths=(...) or batches=(...)"),
        ("nobody", (), "did you mean|use one of"),
    ],
)
def test_what_cannot_be_forecast_is_refused(run, family, target, options, said):
    done = run("forecast", f"{family}:{target}", *options)
    assert done.code == 2
    assert any(word in done.err for word in said.split("|"))


def test_a_saved_forecast_is_shown_again_in_its_formats_and_in_no_other(run, tmp_path):
    saved, page = tmp_path / "forecast.json", tmp_path / "forecast.html"
    saved.write_text(forecast().to_json())
    shown = run("report", str(saved), "--html", str(page))
    assert shown.code == 0
    assert shown.out == FORECAST_FORMATS["text"](forecast(), Look(width=80))
    assert page.read_text().startswith("<!doctype html>")
    refused = run("report", str(saved), "--format", "sarif")
    assert refused.code == 2
    assert "choose one of text, json, md, html" in refused.err


def test_a_forecast_of_a_later_version_is_refused_as_a_forecast(run, tmp_path):
    saved = tmp_path / "forecast.json"
    saved.write_text(forecast().to_json().replace("leadline.forecast/", "leadline.forecast/9"))
    refused = run("report", str(saved))
    assert refused.code == 2
    assert "this version of leadline reads leadline.forecast version" in " ".join(refused.err.split())
