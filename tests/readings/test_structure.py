"""The structure of a network is read off its graph: blocks, residual adds, norm placement, streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

import leadline
from leadline.readings.graph import flow_from
from leadline.readings.structure import Structure, read_structure
from tests.support.traces import trace_of
from tests.support.zoo import ZOO, Specimen, animals, energy

WIDTH, DEPTH = 8, 5


class SpelledOutNorm(nn.Module):
    """RMSNorm in arithmetic, as Hugging Face writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class SpelledOutLayerNorm(SpelledOutNorm):
    """LayerNorm in arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


NORMS = {
    "LayerNorm": nn.LayerNorm,
    "RMSNorm": nn.RMSNorm,
    "spelled-out RMSNorm": SpelledOutNorm,
    "spelled-out LayerNorm": SpelledOutLayerNorm,
}
PLACEMENTS: dict[str, Callable[[nn.ModuleDict, Tensor], Tensor]] = {
    "none": lambda m, x: x + m["f"](x),
    "pre": lambda m, x: x + m["f"](m["before"](x)),
    "post": lambda m, x: m["after"](x + m["f"](x)),
    "output": lambda m, x: x + m["inside"](m["f"](x)),
    "sandwich": lambda m, x: x + m["inside"](m["f"](m["before"](x))),
}


class Block(nn.Module):
    def __init__(self, placement: str, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.rule = PLACEMENTS[placement]
        branch = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.parts = nn.ModuleDict(
            {"f": branch, **{name: norm(WIDTH) for name in ("before", "after", "inside")}}
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(self.parts, x)


def residual_stack(placement: str, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """A stem, residual blocks, and a head; with a final norm where that is usual."""
    blocks = [Block(placement, norm) for _ in range(DEPTH)]
    final = [norm(WIDTH)] if placement == "pre" else []
    return nn.Sequential(nn.Linear(3, WIDTH), *blocks, *final, nn.Linear(WIDTH, 2))


def of(model: nn.Module, *inputs: Tensor) -> Structure:
    return read_structure(leadline.trace(model, inputs, loss=energy))


def placements(found: Structure) -> Counter[str]:
    return Counter(block.residual.placement for block in found.blocks if block.residual is not None)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_place_of_the_norms_is_read_off_the_graph(placement: str, norm: str):
    found = of(residual_stack(placement, NORMS[norm]), torch.randn(4, 3))
    assert placements(found) == {placement: DEPTH}
    assert len(found.blocks) == DEPTH + 2


def test_a_final_norm_is_not_taken_for_a_post_norm_also_without_a_head():
    headless = residual_stack("pre", nn.LayerNorm)[:-1]
    assert placements(of(headless, torch.randn(4, 3))) == {"pre": DEPTH}


@pytest.mark.parametrize(("norm_first", "placement"), [(True, "pre"), (False, "post")])
def test_an_encoder_layer_of_pytorch_is_two_residual_blocks(norm_first: bool, placement: str):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=norm_first)
    model = nn.Sequential(
        nn.Embedding(9, WIDTH),
        nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
        nn.Linear(WIDTH, 9),
    )
    found = of(model, torch.arange(12).view(2, 6) % 9)
    assert placements(found) == {placement: 6}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf-gpt2", {"pre": 4}),
        ("hf-llama", {"pre": 4}),
        ("hf-bert", {"post": 4}),
        ("hf-vit", {"pre": 4}),
        ("hf-t5", {"pre": 10}),
    ],
)
def test_placements_of_known_architectures_are_right(name: str, expected: dict[str, int]):
    assert placements(read_structure(trace_of(ZOO[name]))) == expected


@pytest.mark.parametrize("depth", [1, 7, 40])
def test_a_plain_network_has_one_block_a_layer(depth: int):
    layers = [
        m
        for _ in range(depth)
        for m in (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1))
    ]
    found = of(nn.Sequential(*layers, nn.Linear(WIDTH, 2)), torch.randn(4, WIDTH))
    assert len(found.blocks) == depth + 1
    assert all(block.residual is None and block.weights == 1 for block in found.blocks)
    assert [block.name for block in found.blocks] == [str(4 * layer) for layer in range(depth + 1)]


@pytest.mark.parametrize("animal", animals("encoder-decoder", "hf-t5"))
def test_an_encoder_decoder_has_two_streams_and_one_flows_into_the_other(animal: Specimen):
    found = read_structure(trace_of(animal))
    assert len(found.streams) == 2
    assert sorted(stream.joins is None for stream in found.streams) == [False, True]
    assert sum(stream.blocks for stream in found.streams) == len(found.blocks)
    assert all(block.residual is not None for block in found.blocks if "layer" in block.name)


class UNet(nn.Module):
    """Long skips across the middle: no narrow waist between the first and the last layer."""

    def __init__(self, levels: int = 5) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(levels))
        self.up = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(levels))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = F.gelu(layer(x))
            skips.append(x)
        for layer in self.up:
            x = F.gelu(layer(torch.cat([x, skips.pop()], dim=-1)))
        return x


def test_long_skips_give_blocks_that_are_marked_as_bypassed():
    found = of(UNet(), torch.randn(4, WIDTH))
    assert sum(block.bypassed for block in found.blocks) >= 8
    assert not found.blocks[0].bypassed
    assert sum(block.weights for block in found.blocks) == 10


class Parallel(nn.Module):
    """Attention and feed-forward side by side, as in GPT-J: one sum of three terms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.attention(h, h, h)[0] + self.mlp(h)


def test_attention_and_feed_forward_side_by_side_are_one_residual_block():
    found = of(nn.Sequential(Parallel(), Parallel(), Parallel()), torch.randn(2, 5, WIDTH))
    assert placements(found) == {"pre": 3}
    assert [block.name for block in found.blocks] == ["0", "1", "2"]


class Downsample(nn.Module):
    """A ResNet block; with a convolution on the shortcut where the shape changes."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
        h += self.shortcut(x)
        return F.relu(h, inplace=True)


def test_a_projection_on_the_skip_is_marked_in_its_residual_block():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Downsample(4, 4), Downsample(4, 8), Downsample(8, 8))
    found = of(model, torch.randn(2, 3, 8, 8))
    assert [block.residual and block.residual.projected for block in found.blocks] == [
        None,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "order", [lambda x, h: x + h, lambda x, h: h + x, lambda x, h: torch.add(x, h), lambda x, h: h.add_(x)]
)
def test_the_side_and_spelling_of_the_add_do_not_matter(order: Callable[[Tensor, Tensor], Tensor]):
    class Spelled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return order(x, super().forward(x))

    found = of(nn.Sequential(Spelled(WIDTH, WIDTH), Spelled(WIDTH, WIDTH)), torch.randn(4, WIDTH))
    assert placements(found) == {"none": 2}


def test_a_sum_of_two_layers_is_not_a_residual_block():
    class TwoSides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.left(x) + self.right(x)

    assert placements(of(nn.Sequential(TwoSides(), TwoSides()), torch.randn(4, WIDTH))) == {}


def test_scale_of_skip_and_branch_is_measured():
    torch.manual_seed(0)
    model, x = Block("none", nn.LayerNorm), torch.randn(64, WIDTH)
    (block,) = of(model, x).blocks
    assert block.residual.skip_ms == pytest.approx(x.square().mean().item(), rel=1e-5)
    assert block.residual.branch_ms == pytest.approx(model.parts["f"](x).square().mean().item(), rel=1e-5)
    assert block.forward_ms == pytest.approx(model(x).square().mean().item(), rel=1e-5)


@pytest.mark.parametrize("animal", animals(without=["transforms"]))
def test_every_model_has_blocks_with_unique_names_made_of_its_own_names(animal: Specimen):
    trace = trace_of(animal)
    found = read_structure(trace)
    names = [block.name for block in found.blocks]
    assert names
    assert len(set(names)) == len(names)
    own = {
        part
        for path in (*(m.path for m in trace.modules), *(p.name for p in trace.parameters))
        for part in path.split(".")
    }
    own |= {
        alias for parameter in trace.parameters for name in parameter.aliases for alias in name.split(".")
    }
    for name in names:
        first = name.partition("#")[0].replace("…", ".").split(".")[0]
        assert first in own or first in {op.name for op in trace.ops}, name


@pytest.mark.parametrize("animal", animals(without=["transforms"]))
def test_blocks_follow_the_execution_and_carry_its_measurements(animal: Specimen):
    trace = trace_of(animal)
    found = read_structure(trace)
    for stream in range(len(found.streams)):
        exits = [trace.values[block.exit].op for block in found.blocks if block.stream == stream]
        assert exits == sorted(exits)
    assert all(block.forward_ms is not None for block in found.blocks)


def test_a_permuted_definition_gives_the_same_structure():
    """Names and the order of definition do not matter: only the graph does."""

    class Named(nn.Module):
        def __init__(self, *names: str) -> None:
            super().__init__()
            for name in names:
                self.add_module(
                    name, nn.LayerNorm(WIDTH) if name.startswith("a") else nn.Linear(WIDTH, WIDTH)
                )
            self.layer, self.norm = (next(n for n in names if n.startswith(letter)) for letter in "ba")

        def forward(self, x: Tensor) -> Tensor:
            return x + getattr(self, self.layer)(getattr(self, self.norm)(x))

    for names in (("a_conv", "b_norm"), ("b_norm", "a_conv")):
        assert placements(of(nn.Sequential(Named(*names), Named(*names)), torch.randn(4, WIDTH))) == {
            "pre": 2
        }


def test_the_placement_test_can_fail():
    found = of(residual_stack("post", nn.LayerNorm), torch.randn(4, 3))
    assert placements(found) != {"pre": DEPTH}


def test_without_a_loss_no_input_flows_to_it():
    seen = leadline.trace(nn.Linear(4, 2), torch.randn(8, 4), loss=lambda y: y.square().mean())
    source = next(each for each in seen.values if each.source == "input")
    assert flow_from(seen, source) is not None
    assert flow_from(replace(seen, loss_value=None), source) is None
