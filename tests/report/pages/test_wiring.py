"""What a report shows about wiring."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from leadline.records import (
    Attention,
    AttentionProduct,
    Dependence,
    FrozenWeights,
    Ledger,
    LedgerRow,
    ModelFacts,
    NetworkParts,
    OpSite,
    Perturbation,
    Question,
    StreamMixing,
    TargetOffset,
    UnwrittenTensor,
)
from leadline.records.parts import RepeatedModule, RoundedAngle, Router
from leadline.report.page import Details, Section, Table
from leadline.report.pages.wiring import (
    LEDGER_BLOCKS_SHOWN,
    attention_section,
    experts_section,
    ledger_section,
    parts_section,
    question_section,
)
from tests.support import reports as samples

SITE = OpSite(op="matmul", module="layers.0")
PARTS = NetworkParts(
    attentions=(AttentionProduct(site=SITE, width=64, keys=8, variance=64.0, query_ms=1.0, key_ms=1.0),),
    routers=(
        Router(site=SITE, weight="gate.weight", experts=4, chosen=1, load=(9, 7, 0, 0), gradient="finite"),
    ),
    angles=(RoundedAngle(site=SITE, dtype="bfloat16", largest=512.0, spacing=2.0),),
    repeated=(RepeatedModule(paths=("a.0", "a.1"), type="Linear", parameters=9, is_chained=True),),
    frozen=FrozenWeights(names=("body.weight",), count=4096, share=0.9, feeds_learning=True),
    unwritten=(UnwrittenTensor(name="place", count=9),),
)


def test_every_part_that_was_recognized_has_a_row_with_its_place_and_what_was_measured():
    (table,) = parts_section(PARTS).body
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [
        ("attention", "layers.0"),
        ("router", "layers.0"),
        ("angles", "layers.0"),
        ("repeated module", "a.0"),
        ("frozen matrices", "body.weight"),
        ("memory", "place"),
    ]
    assert "64 features, no factor" in table.rows[0][2]
    assert "2 of 4 experts" in table.rows[1][2]


def test_a_network_without_such_parts_has_no_section():
    assert parts_section(NetworkParts()).body == parts_section(None).body == ()


def test_streams_have_a_row_with_their_gains():
    mixing = StreamMixing(
        site=SITE,
        last="layers.5",
        streams=4,
        layers=6,
        forward_gain=2.0,
        backward_gain=0.5,
        row_error=0.0,
        column_error=0.0,
        spread=0.25,
    )
    (table,) = parts_section(NetworkParts(mixings=(mixing,))).body
    assert isinstance(table, Table)
    assert table.rows == (
        (
            "streams",
            "layers.0",
            "4 in 6 layers; gain 2.00 forward, 0.500 backward; 25 % of the signal differs between streams",
        ),
    )


def attention(place: int) -> Attention:
    return Attention(
        block=place,
        module=f"layers.{place}",
        keys=8,
        purity=0.2,
        uniform=0.125,
        logit_var=1.0,
        head_logits=(1.0, 3.0),
    )


def long_sections(count: int) -> dict[str, Section]:
    """Each section with that many rows in its table."""
    (router,) = PARTS.routers
    rows = tuple(
        LedgerRow(name=f"{place}.w", kind="matrix", count=4, block=f"layers.{place}", gradient="finite")
        for place in range(count)
    )
    profile = samples.profile([1.0], [1.0], facts=ModelFacts(attentions=tuple(map(attention, range(count)))))
    routers = NetworkParts(routers=tuple(replace(router, weight=f"{place}.w") for place in range(count)))
    return {
        "block": ledger_section(Ledger(rows=rows)),
        "attention": attention_section(profile),
        "router": experts_section(routers),
        "part": parts_section(routers),
    }


@pytest.mark.parametrize("kind", long_sections(1))
def test_a_long_table_is_folded_under_the_number_of_its_rows(kind: str):
    shown = long_sections(LEDGER_BLOCKS_SHOWN)[kind].body
    assert not any(isinstance(each, Details) for each in shown)
    (folded,) = [
        each for each in long_sections(LEDGER_BLOCKS_SHOWN + 1)[kind].body if isinstance(each, Details)
    ]
    assert folded.title == f"{LEDGER_BLOCKS_SHOWN + 1} {kind}s"


def probed(*kinds: str, forbidden: tuple[int, ...] = ()) -> Dependence:
    changed = tuple(
        Perturbation(kind=kind, first=0, last=1, moved=(0.0,), forbidden=forbidden) for kind in kinds
    )
    return Dependence(
        passes=3,
        noise=0.0,
        samples=4,
        sample_axis=0,
        positions=8,
        position_axis=1,
        perturbations=changed,
        inputs=(),
    )


def ahead(offset: int) -> Question:
    return Question(offset=TargetOffset(input="input", axis=1, offset=offset, share=1.0, positions=8))


ANSWERS = {
    "samples stay apart": (probed("sample"), None),
    "samples are mixed": (probed("sample", forbidden=(1,)), None),
    "no answer is visible": (probed("future"), None),
    "answers are visible": (probed("future", forbidden=(1,)), None),
    "targets are the inputs themselves": (probed("future"), ahead(0)),
    "targets are the next inputs · no answer is visible": (probed("future"), ahead(1)),
    "targets are the inputs 3 positions ahead": (None, ahead(3)),
    "padding is masked": (probed("padding"), None),
    "padding leaks": (probed("padding", forbidden=(1,)), None),
    "the loss is negated": (None, Question(toward_target=0.0)),
    "": (probed(), None),
}


@pytest.mark.parametrize("words", ANSWERS)
def test_what_the_network_is_asked_is_answered_in_a_few_words(words: str):
    dependence, question = ANSWERS[words]
    section = question_section(samples.profile([1.0], [1.0], dependence=dependence, question=question))
    (brief,) = section.brief
    assert [each.value for each in brief.rows] == ([words] if words else [])
