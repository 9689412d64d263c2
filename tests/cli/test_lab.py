"""`leadline lab`: lists, runs, and says so when the lab disagrees with what is published."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

from leadline.lab.claim import all_claims
from leadline.records import Lab
from tests.support import ROOT

STORED = ROOT / "benchmarks" / "results" / "lab.json"
QUICK = ("S2-1", "S2-3")


def saved(run, tmp_path, *codes: str) -> Lab:
    assert run("lab", "run", *codes, "--json", "--output", "lab.json").code == 0
    return Lab.from_json((tmp_path / "lab.json").read_text())


def test_the_list_has_every_claim_within_the_width(run):
    done = run("lab", "list")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines() if line[0] != " "] == [
        each.code for each in all_claims()
    ]
    assert max(map(len, done.out.splitlines())) <= 80
    assert [row["code"] for row in json.loads(run("lab", "list", "--json").out)] == [
        each.code for each in all_claims()
    ]


def test_a_claim_is_run_by_its_code_in_any_case(run):
    done = run("lab", "run", "s2-3")
    assert done.code == 0
    assert "S2-3  FALSE AS STATED" in done.out
    assert "What is true" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_several_claims_are_summed_up(run):
    assert (
        "2 claims: 1 hold as stated, 1 false as stated" in run("lab", "run", *QUICK, "--seeds", "3", "-v").out
    )
    assert run("lab", "run", *QUICK, "-q").out.count("\n") <= 7


@pytest.mark.parametrize(("wrong", "meant"), [("S0-77", "S0-7"), ("S2_1", "S2-1")])
def test_a_wrong_code_is_answered_with_the_nearest(run, wrong, meant):
    done = run("lab", "run", wrong)
    assert (done.code, done.out) == (2, "")
    assert f"did you mean {meant}?" in done.err


@pytest.mark.parametrize("arguments", [[], ["S2-1", "--all"]])
def test_either_claims_or_all_must_be_given_and_not_both(run, arguments):
    done = run("lab", "run", *arguments)
    assert done.code == 2
    assert "--all" in done.err


def test_what_was_saved_is_shown_as_text_and_as_a_page(run, tmp_path):
    saved(run, tmp_path, *QUICK)
    done = run("report", "lab.json", "--html", "lab.html")
    assert done.code == 0
    assert "S2-3  FALSE AS STATED" in done.out
    assert 'id="S2-3"' in (tmp_path / "lab.html").read_text()


def test_a_lab_that_disagrees_with_what_is_published_says_so_by_its_exit_code(run, tmp_path, monkeypatch):
    lab = saved(run, tmp_path, *QUICK)
    other = replace(lab, experiments=(replace(lab.experiments[0], verdict="false as stated"),))
    monkeypatch.setattr("leadline.lab.claim.run_claims", lambda *_: other)
    done = run("lab", "run", "S2-1", "--html", "other.html")
    assert done.code == 1
    assert "the lab disagrees with what is published: S2-1 is false as stated, published as holds" in done.err
    assert "the lab disagrees with what is published" in (tmp_path / "other.html").read_text()


WITHOUT_TORCH = """
import sys
from leadline.cli import main
assert main(["lab", "run", "--help"]) == 0
assert main(["report", sys.argv[1], "--html", sys.argv[2]]) == 0
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def test_help_and_saved_results_need_no_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, STORED, tmp_path / "lab.html"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
