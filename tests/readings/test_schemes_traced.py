"""A traced network of leadline.nn has the structure that its scheme declares."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import leadline
from leadline.nn import SCHEMES, LanguageModel, Scheme

DEPTH = 8  # blocks; Mix-LN's first quarter is then two of them
NAMES = {
    frozenset(): "none",
    frozenset({"pre"}): "pre",
    frozenset({"post"}): "post",
    frozenset({"out"}): "output",
    frozenset({"pre", "out"}): "sandwich",
    frozenset({"pre", "post"}): "pre+post",
}
RESIDUAL = [
    name for name, row in SCHEMES.items() if row.is_weighted_sum and row.has_skip and not row.block_bypass
]


def placements(scheme: str) -> list[str]:
    torch.manual_seed(0)
    model = LanguageModel(vocab=20, width=16, heads=2, depth=DEPTH, scheme=scheme, max_len=8)
    tokens = torch.randint(0, 20, (2, 9))
    report = leadline.check(
        model,
        tokens[:, :-1],
        tokens[:, 1:],
        lambda out, targets: F.cross_entropy(out.flatten(0, 1), targets.flatten()),
    )
    assert report.verdict == "trains"
    return [block.residual.placement for block in report.profile.blocks if block.residual is not None]


def expected(scheme: Scheme) -> list[str]:
    early = DEPTH // 4 if scheme.early_norms is not None else 0
    rows = [scheme.early_norms or ()] * early + [scheme.norms] * (DEPTH - early)
    return [NAMES[frozenset(norms) - {"inner"}] for norms in rows for _ in range(2)]


@pytest.mark.parametrize("name", RESIDUAL)
def test_the_placement_read_off_the_graph_is_that_of_the_row(name: str):
    assert placements(name) == expected(SCHEMES[name])


def test_a_bypass_around_two_sublayers_makes_them_one_block():
    assert placements("b2t") == ["post"] * DEPTH
