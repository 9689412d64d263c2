"""The table of ops against numbers that know nothing of it, on architectures drawn at random."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import leadline
from leadline.readings.symmetry import scale_rules

WIDTH = 6
ACTIVATIONS = {"relu": torch.relu, "gelu": F.gelu, "tanh": torch.tanh, "abs": torch.abs, "none": lambda x: x}
NORMS = {
    "layer": lambda: nn.LayerNorm(WIDTH),
    "rms": lambda: nn.RMSNorm(WIDTH, eps=1e-6),
    "batch": lambda: nn.BatchNorm1d(WIDTH),
    "plain": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
}


class Branch(nn.Module):
    def __init__(self, kind: str, activation: str, *, bias: bool) -> None:
        super().__init__()
        self.kind, self.activation = kind, activation
        count = {"mlp": 2, "gated": 3, "attention": 4}[kind]
        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.activation]
        if self.kind == "mlp":
            return self.maps[1](act(self.maps[0](x)))
        if self.kind == "gated":
            return self.maps[2](act(self.maps[0](x)) * self.maps[1](x))
        q, k, v = (each(x).unsqueeze(0) for each in self.maps[:3])
        return self.maps[3](F.scaled_dot_product_attention(q, k, v).squeeze(0))


class Drawn(nn.Module):
    """A stack of blocks, each plain or residual, with norms before, after or at the end of the branch."""

    def __init__(self, blocks, norm: str, *, bias: bool, final: bool, tied: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.placements = [placement for placement, _, _ in blocks]
        self.branches = nn.ModuleList(Branch(kind, act, bias=bias) for _, kind, act in blocks)
        self.norms = nn.ModuleList(NORMS[norm]() for _ in blocks)
        self.final = NORMS[norm]() if final else nn.Identity()
        self.head = nn.Linear(WIDTH, WIDTH, bias=bias)
        if tied:
            self.head.weight = self.enter.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for placement, branch, norm in zip(self.placements, self.branches, self.norms, strict=True):
            if placement == "plain":
                x = norm(branch(x))
            elif placement == "bare":
                x = x + branch(x)
            elif placement == "post":
                x = norm(x + branch(x))
            elif placement == "pre":
                x = x + branch(norm(x))
            else:
                x = x + norm(branch(x))
        return self.head(self.final(x))


BLOCKS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "bare", "post", "pre", "output"]),
        st.sampled_from(["mlp", "gated", "attention"]),
        st.sampled_from(sorted(ACTIVATIONS)),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(BLOCKS, st.sampled_from(sorted(NORMS)), st.booleans(), st.booleans(), st.booleans())
def test_table_and_gradients_find_the_same_group(blocks, norm, bias, final, tied):
    torch.manual_seed(0)
    net = Drawn(blocks, norm, bias=bias, final=final, tied=tied)
    found = leadline.symmetries(net, torch.randn(12, WIDTH))
    verdict = found.verify()
    assert verdict.ok, str(verdict)
    assert verdict.missed == 0 or "precisely" in verdict.why, str(verdict)


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(5, 4)


def test_a_table_in_which_tanh_is_homogeneous_is_refuted(monkeypatch):
    monkeypatch.setitem(scale_rules.SCALE_RULES, "fixed", scale_rules.homogeneous)
    found = leadline.symmetries(*network())
    verdict = found.verify()
    assert found.dimension == 1
    assert verdict.refuted == (0,)
    assert verdict.drift > 1e-3
    assert not verdict.ok
    assert "0.weight" in verdict.suspects
    assert "mistake in leadline's op table" in str(verdict)


def test_a_table_in_which_relu_is_fixed_misses_a_free_direction(monkeypatch):
    monkeypatch.setitem(scale_rules.SCALE_RULES, "homogeneous", scale_rules.fixed)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    verdict = leadline.symmetries(net, torch.randn(5, 4)).verify()
    assert verdict.missed == 1
    assert not verdict.ok


def test_verifying_leaves_the_model_as_it_was():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    before = {name: each.clone() for name, each in net.state_dict().items()}
    state = torch.get_rng_state()
    leadline.symmetries(net, torch.randn(5, 4)).verify()
    torch.randn(5, 4)
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())
    assert all(each.dtype == torch.float32 for each in net.parameters())
    assert torch.get_default_dtype() == torch.float32
    assert not torch.equal(state, torch.get_rng_state())
    assert all(each.grad is None for each in net.parameters())


def test_with_fewer_passes_completeness_is_not_measured():
    verdict = leadline.symmetries(*network()).verify(passes=2)
    assert verdict.missed is None
    assert verdict.ok
    assert "2 of" in str(verdict)
