"""What a report shows about wiring."""

from __future__ import annotations

from leadline.records import AttentionProduct, FrozenWeights, NetworkParts, OpSite, UnwrittenTensor
from leadline.records.parts import RepeatedModule, RoundedAngle, Router
from leadline.report.page import Table
from leadline.report.pages.wiring import parts_section

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
