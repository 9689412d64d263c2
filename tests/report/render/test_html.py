"""The page as text: closed to the outside, small, and with nothing in it but what its policy names."""

import base64
import hashlib
import json
import re
import zlib

import pytest
from msgspec.structs import replace

from leadline.records import Gap, Recipe
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.pages.report import next_commands, report_page, reproducing_code, steps_to_take
from leadline.report.render import markdown, notebook
from leadline.report.render.html import embedded, pack_record
from tests.support import reports as samples
from tests.support.parsed_html import html_of, read

FETCHING = ("src", "srcset", "poster", "background", "action", "formaction", "data", "ping")
SAMPLES = ("sick", "healthy", "broken", "reviewed", "hostile", "thousand")


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_in_a_page_fetches_or_is_styled_or_run_in_an_attribute(name):
    page = read(html_of(getattr(samples, name)()))
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not {*FETCHING, "style"} & attributes.keys()
        assert not [key for key in attributes if key.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")


def test_every_script_and_style_is_named_by_its_hash_and_nothing_else_is_allowed():
    text = html_of(samples.sick())
    policy = next(attributes["content"] for tag, attributes in read(text).tags if "http-equiv" in attributes)
    blocks = re.findall(r"<(script|style)>(.*?)</\1>", text, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for _, body in blocks}
    assert set(re.findall(r"sha256-([^']+)'", policy)) == hashes
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_licence_of_the_chart_library_is_in_the_page():
    assert "The MIT License" in html_of(samples.sick())


@pytest.mark.parametrize("name", samples.HOSTILE_NAMES, ids=range(len(samples.HOSTILE_NAMES)))
def test_no_name_ends_the_data_or_opens_an_element(name):
    page, plain = (read(html_of(samples.hostile(each))) for each in (name, "plain"))
    # A name with backticks may be shown as code.
    tags, expected = ([tag for tag, _ in each.tags if tag != "code"] for each in (page, plain))
    assert tags == expected if name else set(tags) <= set(expected)
    assert len(page.scripts) == len(plain.scripts)
    assert json.loads(page.data)[0]["markdown"]


def test_embedded_data_can_not_end_its_element():
    made = str(embedded(["</script><!--", "&", float("nan")]))
    assert not re.search("[<>&]", made)
    assert json.loads(made) == ["</script><!--", "&", "NaN"]


def test_numbers_in_the_data_have_at_most_four_digits():
    data = json.loads(read(html_of(samples.sick())).data)
    values = data[0]["panels"][1]["series"][0]["values"]
    assert all(value == float(f"{value:.4g}") for value in values)


def unpacked(packed: str) -> str:
    return zlib.decompress(base64.b64decode(packed)).decode()


def test_the_record_in_the_page_is_the_report():
    report = samples.broken()
    found = pack_record(report)
    assert found.is_whole
    assert unpacked(found.packed) == report.to_json()


def test_a_record_too_large_is_shortened_and_still_a_report(monkeypatch):
    monkeypatch.setattr("leadline.report.render.html.MAX_RECORD", 100)
    found = pack_record(samples.thousand())
    assert not found.is_whole
    again = Report.from_json(unpacked(found.packed))
    assert len(again.profile.blocks) == 1000
    assert again.profile.blocks[700].forward_ms == float(f"{1.01**700:.4g}")


def test_a_rate_above_the_safe_one_is_advised_against():
    shape = samples.profile([1.0] * 3, [1.0] * 3, update=samples.step())
    titles = [each.title for each in steps_to_take(samples.report(shape, verdict="poor"))]
    assert titles == ["Lower the learning rate from 0.00100 to 0.000400, or warm up over 2000 steps"]
    calm = samples.profile([1.0] * 3, [1.0] * 3, update=samples.step(safe_lr=4e-3))
    assert steps_to_take(samples.report(calm, verdict="poor")) == []


def test_nothing_is_advised_for_a_model_that_trains():
    """The headline, its color and the advice agree."""
    shape = samples.profile([1.0] * 3, [1.0] * 3, update=samples.step())
    report = samples.report(shape, samples.finding(severity="info"), verdict="trains")
    assert steps_to_take(report) == []
    for words in (
        html_of(report),
        markdown.render(report_page(report)),
        notebook.render(report_page(report)),
    ):
        assert "TRAINS" in words
        assert "Lower the learning rate" not in words


def test_a_finding_about_the_step_is_the_only_advice_about_the_rate():
    shape = samples.profile([1.0] * 3, [1.0] * 3, update=samples.step())
    finding = samples.finding(code="U501", action="Lower the learning rate to 0.01.")
    assert [each.title for each in steps_to_take(samples.report(shape, finding))] == [finding.action]


def test_what_to_do_holds_the_action_and_leaves_the_diagnosis_to_the_finding():
    finding = samples.finding(action="Use He initialization.", where="58 … 0")
    (step,) = steps_to_take(samples.report(samples.profile([1.0], [1.0]), finding))
    assert step.title == finding.action
    assert finding.message not in (step.title, step.why)
    assert step.why == "B201 gradient-decay, layers 58 … 0"


def test_one_step_is_shown_by_range_of_depth_beside_what_was_measured():
    words = read(html_of(samples.report(samples.profile([1.0] * 3, [1.0] * 3, update=samples.step())))).words
    assert "layers.0 … layers.29-0.100" in words.replace(" ", "").replace("…", " … ")
    assert "all, measured" in words
    assert "-0.0200" in words
    assert "your rate 0.00100" in words


def test_what_a_range_does_alone_stands_below_its_predicted_change():
    part = replace(samples.step().ranges[0], loss_change=-0.033)
    shape = samples.profile([1.0] * 3, [1.0] * 3, update=samples.step(ranges=(part,)))
    words = read(html_of(samples.report(shape))).words
    assert words.index("-0.100") < words.index("moved alone") < words.index("-0.0330")


def test_what_the_baseline_knows_is_no_advice():
    shape = samples.profile([1.0], [1.0])
    assert steps_to_take(samples.report(shape, samples.finding(known=True))) == []


def test_commands_name_the_target_as_one_word_of_a_shell():
    report = replace(samples.sick(), target="my nets.py:make; rm -rf /")
    assert next_commands(report)[0].line == "leadline fix 'my nets.py:make; rm -rf /'"
    assert reproducing_code(report) == "leadline check 'my nets.py:make; rm -rf /' --html report.html"
    assert "report.to_html" in reproducing_code(samples.sick())


def test_what_was_not_seen_is_listed():
    gap = Gap(what="compiled part", why="it is one op", where=tuple(f"m{i}" for i in range(9)))
    words = read(html_of(samples.report(samples.profile([1.0], [1.0]), seen=samples.coverage(gap)))).words
    assert "compiled part" in words
    assert "and 3 more" in words


def test_a_repair_without_a_recommendation_says_so():
    repair = RepairReport(
        leadline="0.1.0",
        before=samples.sick(),
        after=None,
        outcomes=(),
        recipe=Recipe(leadline="0.1.0", model="M"),
        seconds=1.5,
    )
    assert "No fix is recommended: no fixes tried in 1.50 s." in read(html_of(repair)).words


def test_to_html_writes_the_page(tmp_path):
    samples.sick().to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html_of(samples.sick())


def test_code_in_an_action_is_shown_as_code_and_cannot_become_markup():
    finding = samples.finding(action="Use `nn.ReLU()`, not `<b>`.")
    text = html_of(samples.report(samples.profile([1.0], [1.0]), finding))
    assert '<p class="action">Use <code>nn.ReLU()</code>, not <code>&lt;b&gt;</code>.</p>' in text
