"""The docs are what the code and the stored results say: nothing in them is written twice by hand."""

import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import (
    alarms,
    applications,
    dropout,
    figures,
    fleet,
    incidents,
    phase,
    programs_run,
    race,
    rate_edge,
    repair,
    repair_reference,
    report_page,
    run_file_cost,
    start_up,
    symmetry,
    tensor_statistics,
    theory_accuracy,
    trace,
    watch,
    weightless,
)
from benchmarks.agent_policy import __main__ as agent_policy_page
from benchmarks.field import page as field_page
from benchmarks.first_hour import page as first_hour_page
from benchmarks.memory import peak_of
from benchmarks.mutation import page as mutation_page
from benchmarks.result_files import fill, load
from benchmarks.time_machine import history as time_machine_history
from benchmarks.time_machine import page as time_machine_page
from benchmarks.time_machine import sweep as time_machine_sweep
from benchmarks.timing import alternate, ratio
from benchmarks.wiring import page as wiring_page
from benchmarks.wiring import silence as wiring_silence
from benchmarks.zoo import page as zoo_page
from benchmarks.zoo import training as zoo_training
from leadline import Case
from leadline.checks._select import all_checks
from leadline.fixes import all_fixes
from leadline.lab.claim import all_claims
from tests.support import ROOT
from tests.support.site_links import broken_links

PAGES = [
    ("tutorial/applications.md", "applications", applications.render),
    ("tutorial/incidents.md", "incidents", incidents.render),
    ("reference/alarms.md", "alarms", alarms.render),
    ("reference/report.md", "page", report_page.render_table),
    ("lab-notes/performance.md", "trace", trace.render),
    ("lab-notes/log.md", "statistics", tensor_statistics.render),
    ("lab-notes/log.md", "dropout", dropout.render),
    ("explanation/weightless.md", "weightless", weightless.render),
    ("lab-notes/robustness.md", "mutation", mutation_page.render),
    ("reference/runs.md", "store_cost", run_file_cost.render),
    ("lab-notes/agent-policy.md", "agent_policy", agent_policy_page.render),
    ("lab-notes/performance.md", "start_up", start_up.render),
    ("explanation/symmetry.md", "symmetry", symmetry.render),
    ("explanation/theory.md", "theory_accuracy", theory_accuracy.render),
    ("lab-notes/repair.md", "repair_held_out", repair.render_held_out),
    ("lab-notes/repair.md", "repair_baseline", repair.render),
    ("lab-notes/repair.md", "repair_reference", repair_reference.render),
    ("reference/watch.md", "watch", watch.render),
    ("howto/run.md", "programs", programs_run.render),
    ("explanation/comparison.md", "watch", figures.monitor_costs),
    ("lab-notes/phase.md", "fleet", fleet.render),
    ("lab-notes/phase.md", "phase", phase.render),
    ("lab-notes/phase.md", "rate_edge", rate_edge.render),
    ("lab-notes/race.md", "race", race.render),
    ("lab-notes/first-hour.md", "first_hour", first_hour_page.render),
    ("lab-notes/field.md", "field", field_page.render),
    ("lab-notes/wiring.md", "wiring", wiring_page.render),
    ("lab-notes/wiring.md", "wiring_silence", wiring_silence.render),
    (
        "lab-notes/time-machine.md",
        "time_machine",
        lambda results: time_machine_page.render(
            results, load(time_machine_sweep.RESULTS), load(time_machine_history.RESULTS)
        ),
    ),
    ("lab-notes/zoo.md", "zoo", zoo_page.render),
    ("lab-notes/zoo.md", "zoo_training", zoo_training.render),
]


@pytest.fixture(scope="module")
def hooks():
    spec = util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("page", "benchmark", "render"), PAGES)
def test_a_quoted_table_is_what_the_stored_results_render_to(page, benchmark, render):
    text = (ROOT / "docs" / page).read_text()
    assert fill(text, benchmark, render(load(benchmark))) == text


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_table_and_every_measured_part_of_a_page_has_content(page):
    assert empty_parts(page.read_text()) == []


def empty_parts(text: str) -> list[str]:
    """Tables that end after their head, and places for results that hold no table, list or sentence."""
    tables = re.findall(r"^(\|.*)\n\|[ :|-]+\|\n(?!\|)", text, re.MULTILINE)
    return tables + re.findall(r"<!-- begin (\w+) -->\s*<!-- end", text)


def test_an_empty_table_is_noticed():
    assert empty_parts("| a | b |\n| --- | --- |\n\n") == ["| a | b |"]
    assert empty_parts("| a | b |\n| --- | --- |\n| 1 | 2 |\n") == []
    assert empty_parts("<!-- begin x -->\n\n<!-- end x -->") == ["x"]


def test_a_number_changed_by_hand_is_noticed():
    page = "before\n<!-- begin x -->\n\n| 1.2 |\n\n<!-- end x -->\nafter"
    assert fill(page, "x", "| 1.2 |") == page
    assert fill(page, "x", "| 1.3 |") != page


def test_a_page_without_a_place_for_its_table_is_an_error():
    with pytest.raises(ValueError, match="begin x"):
        fill("no marks here", "x", "| 1.2 |")


def test_every_rule_has_a_page_made_of_its_docstring(hooks):
    for rule in all_checks():
        page = hooks.rule_page(rule)
        assert page.startswith(f"# {rule.code} {rule.name}\n")
        assert rule.doc in page
        assert f"[{rule.code}]({rule.code}.md)" in hooks.rules_index(all_checks())


def test_every_fix_has_a_page_made_of_its_docstring(hooks):
    for fix in all_fixes():
        page = hooks.fix_page(fix)
        assert page.startswith(f"# {fix.name}\n")
        assert fix.doc in page
        assert f"[{fix.name}]({fix.name}.md)" in hooks.fixes_index(all_fixes())


def test_the_page_of_the_lab_has_every_claim_below_its_introduction(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="lab-notes/claims.md"))
    made = hooks.on_page_markdown("# Introduction\n\n", page=page)
    assert made.startswith("# Introduction\n")
    assert all(f"### {each.code}: {each.verdict}" in made for each in all_claims())
    other = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert hooks.on_page_markdown("as it is", page=other) == "as it is"


@pytest.mark.parametrize(
    ("uri", "link", "on_the_site"),
    [
        ("index.md", "../src/leadline/checks", "reference/rules/index.md"),
        ("tutorial/x.md", "../../src/leadline/checks/model/gradient_decay.py", "../reference/rules/B201.md"),
        ("reference/fix.md", "../../src/leadline/fixes/pre_norm.py", "fixes/pre-norm.md"),
        ("lab-notes/x.md", "../../benchmarks/figures.py", "figures.md"),
        ("index.md", "howto/index.md", "howto/index.md"),
    ],
)
def test_on_the_site_a_link_to_a_source_leads_to_the_page_made_of_it(hooks, uri, link, on_the_site):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
    assert hooks.on_page_markdown(f"see [x]({link}#y)", page=page) == f"see [x]({on_the_site}#y)"


def test_formulas_become_mathml_and_code_does_not(hooks):
    made = hooks.on_page_content(r'<span class="arithmatex">\(a &lt; b^2\)</span> <code>$x$</code>')
    assert "<math" in made
    assert "<msup>" in made
    assert "arithmatex" not in made
    assert "<code>$x$</code>" in made


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_links_lead_somewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    built = "".join(page.read_text() for page in tmp_path.rglob("*.html"))
    assert "arithmatex" not in built
    assert "googleapis" not in built
    assert all((tmp_path / "reference" / "rules" / f"{rule.code}.html").exists() for rule in all_checks())
    assert broken_links(tmp_path) == []


def test_the_benchmark_behind_the_table_runs(capsys):
    trace.quick()
    assert capsys.readouterr().out.count("ratio") == 3


def test_ways_that_are_timed_take_turns_to_go_first():
    order = []
    ways = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    seconds = alternate(ways, rounds=2, warmups=0)
    assert order == ["a", "b", "b", "a"]
    assert [len(times) for times in seconds.values()] == [2, 2]


def test_timing_stops_when_patience_runs_out_but_not_before_a_third_of_the_rounds():
    assert len(alternate({"a": list}, rounds=9, patience=0.0)["a"]) == 3


def test_a_slowdown_that_hits_both_ways_leaves_their_ratio_alone():
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]).median == 2.0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the kernel's high-water mark")
def test_the_memory_figure_sees_what_a_pass_holds_and_lets_go():
    case = Case(torch.nn.Identity(), torch.zeros(4, 1), torch.zeros(4))
    found = peak_of(lambda _: torch.ones(64 * 2**18), case)  # 64 MB of float32
    assert 60 < found < 70
