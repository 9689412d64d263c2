"""Views that move axes, layers that are one layer, masks and lengths, and tensors whose results are not used."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.readings.wiring.patterns import moved_axis
from tests.readings.wiring.test_signs import SAMPLES, WIDTH, mlp, severities
from tests.support.wiring import Function


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


# Views.


@pytest.mark.parametrize(
    ("before", "after", "axis"),
    [
        ((6, 16, 32), (6, 4, 16, 8), 16),  # heads before positions
        ((6, 4, 16, 8), (6, 16, 32), 16),  # heads joined without a transpose
        ((6, 3, 10, 12), (6, 10, 12, 3), 12),  # channels last
        ((2, 6, 24), (6, 48), 6),  # two directions of a recurrent layer
        ((96, 5), (6, 5, 16), 5),  # rows of scores
        ((6, 16, 32), (6, 16, 4, 8), None),  # heads after positions
        ((6, 16, 32), (96, 32), None),
        ((96, 32), (6, 16, 32), None),
        ((6, 3, 8, 8), (6, 192), None),
        ((6, 64, 32), (6, 32, 64), None),  # frames joined in pairs
        ((6, 24, 8, 8), (6, 8, 192), None),  # groups of channels, as many as rows
        ((6, 1, 12), (6, 12, 1), None),
    ],
)
def test_only_a_view_that_needs_a_transpose_moves_an_axis(before, after, axis):
    assert moved_axis(before, after) == axis


@pytest.mark.parametrize("is_moved", [True, False])
def test_heads_that_a_view_puts_before_positions_are_named_without_a_causal_question(is_moved: bool):
    def forward(self: Function, x: Tensor) -> Tensor:
        samples, positions, _ = x.shape
        query = self.query(x)
        heads = (
            query.view(samples, positions, 4, 8).transpose(1, 2)
            if is_moved
            else query.view(samples, 4, positions, 8)
        )
        weights = (heads @ heads.transpose(-1, -2) / 8**0.5).softmax(-1)
        return self.out((weights @ heads).transpose(1, 2).flatten(2).mean(1))

    model = Function(forward, query=nn.Linear(WIDTH, 32), out=nn.Linear(32, 3))
    targets = torch.randint(0, 3, (SAMPLES,))
    found = severities(model, torch.randn(SAMPLES, 10, WIDTH), targets, F.cross_entropy)
    assert ("scrambled-axes" in found) == (not is_moved)


def test_relative_positions_are_shifted_by_a_view_on_purpose():
    def forward(self: Function, x: Tensor) -> Tensor:
        scores = self.query(x)  # (samples, positions, distances)
        samples, rows, columns = scores.shape
        shifted = F.pad(scores, (1, 0)).view(samples, columns + 1, rows)[:, 1:].reshape(scores.shape)
        return self.out(shifted.softmax(-1)).mean(1)

    model = Function(forward, query=nn.Linear(WIDTH, 10), out=nn.Linear(10, 3))
    targets = torch.randint(0, 3, (SAMPLES,))
    found = severities(model, torch.randn(SAMPLES, 10, WIDTH), targets, F.cross_entropy)
    assert "scrambled-axes" not in found


@pytest.mark.parametrize("is_moved", [True, False])
def test_rows_of_scores_that_a_view_makes_of_channels_meet_other_targets(is_moved: bool):
    def forward(self: Function, x: Tensor) -> Tensor:
        scores = self.conv(x)
        return (scores.movedim(1, -1) if is_moved else scores).reshape(-1, 4)

    pictures = torch.randn(6, 1, 12, 12)
    targets = (pictures[:, 0] > 0).long().flatten()
    found = severities(
        Function(forward, conv=nn.Conv2d(1, 4, 3, padding=1)), pictures, targets, F.cross_entropy
    )
    assert ("mixed-targets" in found) == (not is_moved)


# Layers that are one layer.


def shaped(*layers: nn.Module) -> dict[str, str]:
    return severities(
        nn.Sequential(*layers), torch.randn(SAMPLES, WIDTH), torch.randint(0, 3, (SAMPLES,)), F.cross_entropy
    )


def test_two_layers_without_an_activation_are_named():
    assert "missing-activation" in shaped(nn.Linear(WIDTH, 16), nn.Dropout(0.1), nn.Linear(16, 3))
    assert "missing-activation" not in shaped(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 3))


def test_a_factorization_needs_no_activation():
    layers = nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 2), nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3)
    assert "missing-activation" not in shaped(*layers)


def test_the_projection_of_an_attention_before_a_head_is_no_mistake():
    def forward(self: Function, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))

    model = Function(
        forward, attention=nn.MultiheadAttention(WIDTH, 2, batch_first=True), head=nn.Linear(WIDTH, 3)
    )
    targets = torch.randint(0, 3, (SAMPLES,))
    assert "missing-activation" not in severities(
        model, torch.randn(SAMPLES, 5, WIDTH), targets, F.cross_entropy
    )


# Samples: masks, and as many positions as samples.


@pytest.mark.parametrize("axis", [0, 1])
def test_a_mask_that_is_normalized_over_the_batch_mixes_samples(axis: int):
    def forward(self: Function, x: Tensor, mask: Tensor) -> Tensor:
        weights = mask / mask.sum(axis, keepdim=True).clamp(min=1)
        return self.out((self.embed(x) * weights[..., None]).sum(1))

    model = Function(forward, embed=mlp(WIDTH, 16), out=nn.Linear(16, 3))
    mask = (torch.rand(SAMPLES, 7) > 0.4).float()
    targets = torch.randint(0, 3, (SAMPLES,))
    found = severities(model, (torch.randn(SAMPLES, 7, WIDTH), mask), targets, F.cross_entropy)
    assert ("mixed-samples" in found) == (axis == 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_mean_over_the_batch_that_leaves_as_many_positions_mixes_samples(axis: int):
    def forward(self: Function, ids: Tensor, mask: Tensor) -> Tensor:
        return self.out((self.embed(ids) * mask[..., None]).mean(axis))

    model = Function(forward, embed=nn.Embedding(20, 16), out=nn.Linear(16, 3))
    ids = torch.randint(0, 20, (12, 12))
    found = severities(model, (ids, (ids > 3).float()), torch.randint(0, 3, (12,)), F.cross_entropy)
    assert ("mixed-samples" in found) == (axis == 0)


def test_rows_of_few_others_are_no_causal_sequence():
    index = torch.arange(SAMPLES)
    index[4:8] = torch.tensor([5, 4, 7, 6])
    model = Function(lambda self, x: self.net(x)[index], net=mlp(WIDTH, 3))
    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randint(0, 3, (SAMPLES,)), F.cross_entropy)
    assert found["mixed-samples"] == "error"


# Which positions are read.


@pytest.mark.parametrize("position", [0, -1])
def test_a_recurrent_layer_that_is_read_at_its_first_step_reads_one_position(position: int):
    def forward(self: Function, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, position])

    model = Function(forward, rnn=nn.GRU(WIDTH, 16, batch_first=True), out=nn.Linear(16, 3))
    targets = torch.randint(0, 3, (SAMPLES,))
    found = severities(model, torch.randn(SAMPLES, 10, WIDTH), targets, F.cross_entropy)
    assert ("unused-past" in found) == (position == 0)


# Padding that nobody declares.


@pytest.mark.parametrize("ignored", [0, -100])
def test_rows_that_are_filled_up_show_what_padding_is(ignored: int):
    lengths = torch.arange(SAMPLES) % 6 + 6
    tokens = torch.randint(1, 20, (SAMPLES, 13)) * (torch.arange(13) < lengths[:, None])
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=ignored)

    assert ("unmasked-padding" in severities(model, tokens[:, :-1], tokens[:, 1:], loss)) == (ignored < 0)


# Gradients.


@pytest.mark.parametrize("is_added", [True, False])
def test_an_adapter_whose_result_is_not_added_is_discarded(is_added: bool):
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(WIDTH, 16)
            self.down = nn.Parameter(torch.randn(2, WIDTH))
            self.up = nn.Parameter(torch.zeros(16, 2))

        def forward(self, x: Tensor) -> Tensor:
            change = x @ self.down.t() @ self.up.t()
            return self.base(x) + change if is_added else self.base(x)

    model = nn.Sequential(Adapter(), nn.ReLU(), nn.Linear(16, 3))
    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randint(0, 3, (SAMPLES,)), F.cross_entropy)
    assert ("discarded-results" in found) == (not is_added)


@pytest.mark.parametrize("is_zero", [True, False])
def test_an_adapter_of_which_both_matrices_are_zero_is_stuck(is_zero: bool):
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(WIDTH, 16).requires_grad_(requires_grad=False)
            self.down = nn.Parameter(torch.zeros(2, WIDTH) if is_zero else torch.randn(2, WIDTH))
            self.up = nn.Parameter(torch.zeros(16, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + x @ self.down.t() @ self.up.t()

    model = nn.Sequential(Adapter(), nn.ReLU(), nn.Linear(16, 3))
    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randint(0, 3, (SAMPLES,)), F.cross_entropy)
    assert ("stuck-zeros" in found) == is_zero


@pytest.mark.parametrize("samples", [1, SAMPLES])
def test_a_layer_of_zeros_is_stuck_if_its_input_is_zero_in_several_numbers_and_not_by_chance_in_one(
    samples: int,
):
    narrow, closed = nn.Linear(WIDTH, 1), nn.Linear(1, 3)
    nn.init.constant_(narrow.bias, -50.0)  # the one unit is off
    nn.init.zeros_(closed.weight)
    model = nn.Sequential(narrow, nn.ReLU(), closed)
    found = severities(model, torch.randn(samples, WIDTH), torch.randint(0, 3, (samples,)), F.cross_entropy)
    assert ("stuck-zeros" in found) == (samples > 1)


@pytest.mark.parametrize("how", ["kept", "detached", "no_grad"])
def test_a_draw_by_hand_that_is_cut_is_named(how: str):
    def forward(self: Function, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, width = self.mean(x), self.width(x).exp()
        with torch.set_grad_enabled(how != "no_grad"):
            code = mean + width * torch.randn_like(width)
        return self.decode(code.detach() if how == "detached" else code), mean.pow(2) + width

    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return F.mse_loss(output[0], targets) + output[1].mean()

    model = Function(forward, mean=mlp(WIDTH, 4), width=mlp(WIDTH, 4), decode=mlp(4, WIDTH))
    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH), loss)
    assert ("blocked-path" in found) == (how != "kept")


def test_what_no_optimizer_holds_may_be_detached():
    model = Function(
        lambda self, x: self.critic(self.maker(x).detach()), maker=mlp(WIDTH, 8), critic=mlp(8, 3)
    )
    case = (model, torch.randn(SAMPLES, WIDTH), torch.randint(0, 3, (SAMPLES,)), F.cross_entropy)
    held = torch.optim.Adam(model.critic.parameters(), lr=1e-3)
    assert "blocked-path" not in severities(*case, held)
    assert "blocked-path" in severities(*case, torch.optim.Adam(model.parameters(), lr=1e-3))


def test_a_scale_that_becomes_a_number_does_not_learn():
    model = Function(lambda self, x: self.scale.weight.exp().item() * self.net(x), net=mlp(WIDTH, 3))
    model.scale = nn.Module()
    model.scale.weight = nn.Parameter(torch.tensor(0.5))
    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randint(0, 3, (SAMPLES,)), F.cross_entropy)
    assert "blocked-path" in found


@pytest.mark.parametrize("is_smooth", [True, False])
def test_a_choice_that_stops_all_gradients_is_named(is_smooth: bool):
    places = torch.arange(5.0)

    def forward(self: Function, x: Tensor) -> Tensor:
        scores = self.net(x)
        soft = (scores.softmax(-1) * places).sum(-1)
        return soft if is_smooth else scores.argmax(-1).float() + 0 * soft

    found = severities(
        Function(forward, net=mlp(WIDTH, 5)), torch.randn(SAMPLES, WIDTH), 2 * torch.rand(SAMPLES), F.mse_loss
    )
    assert ("blocked-path" in found) == (not is_smooth)


def test_a_decoder_that_gets_nothing_but_noise_reads_no_input():
    def forward(self: Function, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encode(x)
        return self.decode(torch.randn_like(code)), code

    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return F.mse_loss(output[0], targets) + output[1].pow(2).mean()

    model = Function(forward, encode=mlp(WIDTH, 4), decode=mlp(4, WIDTH))
    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH), loss)
    assert found["idle-input"] == "warning"


@pytest.mark.parametrize(("samples", "heads", "width"), [(8, 4, 32), (4, 4, 16), (6, 2, 12), (16, 2, 32)])
def test_attention_of_torch_scrambles_nothing_at_any_length(samples, heads, width):
    class Attended(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
            self.head = nn.Linear(width, 3)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0].mean(1))

    torch.manual_seed(0)
    report = leadline.check(
        Attended(), torch.randn(samples, 12, width), torch.randint(3, (samples,)), F.cross_entropy
    )
    assert "scrambled-axes" not in {each.name for each in report.findings if each.severity != "info"}
