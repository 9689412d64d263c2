"""Residual: the wiring, what it does to a branch, and where it must survive."""

import copy
import pickle

import pytest
import torch
from torch import nn

from leadline.errors import InputError
from leadline.nn import MLP, SCHEMES, Encoder, Layout, Options, Residual
from leadline.nn.attention import SelfAttention
from leadline.nn.roles import fill_branch_
from leadline.nn.scheme import one

x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))


def branch() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))


def by_hand(name: str, f: nn.Module) -> torch.Tensor:
    """The published formula, with S = 9 sub-layers, at block 4 (from 0)."""
    ln = nn.functional.layer_norm
    n = (16,)
    return {
        "none": lambda: f(x),
        "post": lambda: ln(x + f(x), n),
        "pre": lambda: x + f(ln(x, n)),
        "deepnorm": lambda: ln(9**0.25 * x + f(x), n),
        "deepnorm-adam": lambda: ln(3 * x + f(x), n),
        "residual-sqrt": lambda: x + f(ln(x, n)) / 3,
        "residual-linear": lambda: x + f(ln(x, n)) / 9,
        "keel": lambda: ln(9 * x + f(ln(x, n)), n),
        "peri": lambda: x + ln(f(ln(x, n)), n),
        "sandwich": lambda: x + ln(f(ln(x, n)), n),
        "res-post": lambda: x + ln(f(x), n),
        "layernorm-scaling": lambda: x + f(ln(x, n) / 5**0.5),
        "gpt2-init": lambda: x + f(ln(x, n)),
        "layerscale": lambda: x + 0.1 * f(ln(x, n)),
        "rezero": lambda: x,
        "skipinit": lambda: x,
        "fixup": lambda: x + f(x),
        "t-fixup": lambda: x + f(x),
        "admin": lambda: ln(5**0.5 * x + f(x), n),
        "magneto": lambda: x + f(ln(x, n)),
        "mix": lambda: x + f(ln(x, n)),
        "b2t": lambda: ln(x + f(x), n),
    }[name]()


@pytest.mark.parametrize("name", [name for name, row in SCHEMES.items() if row.is_weighted_sum])
def test_wiring_is_the_published_formula(name):
    residual = Residual(branch(), scheme=name, index=4, depth=9)
    torch.testing.assert_close(residual(x), by_hand(name, residual.branch))


@pytest.mark.parametrize("name", SCHEMES)
def test_gain_touches_the_matrices_of_its_roles_and_nothing_else(name):
    attention = SelfAttention(16, 2, options=Options())
    fill_branch_(attention, "unit", generator=torch.Generator().manual_seed(0))
    before = [part.weight.detach().clone() for part in attention.role_weights()]
    residual = Residual(attention, scheme=name, index=0, depth=8, layout=Layout(sublayers=2))
    row = residual.scheme
    for old, new in zip(before, attention.role_weights(), strict=True):
        factor = (
            0.0
            if new.role in row.zero_roles
            else row.gain(residual.place)
            if new.role in row.gain_roles
            else 1.0
        )
        torch.testing.assert_close(new.weight.detach(), old * factor)


def test_gain_reaches_the_parts_of_a_packed_multihead_attention_but_not_its_queries_and_keys():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)

    wrapped = Wrapped()
    packed = wrapped.attention.in_proj_weight.detach().clone()
    Residual(wrapped, scheme="deepnorm", index=0, depth=4)
    ratio = (wrapped.attention.in_proj_weight / packed).detach()
    torch.testing.assert_close(ratio[:16], torch.ones(16, 8))
    torch.testing.assert_close(ratio[16:], torch.full((8, 8), 16**-0.25))


def test_fixup_of_a_branch_of_three_matrices_uses_its_own_power():
    three = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    first, last = three[0].weight.detach().clone(), three[4]
    Residual(three, scheme="fixup", index=0, depth=16)
    torch.testing.assert_close(three[0].weight, first * 16**-0.25)  # L^(-1/(2m-2)) with m = 3
    assert not last.weight.any()


def test_state_dict_keys_are_the_published_ones():
    expected = {
        "pre": {"norm_pre.weight", "norm_pre.bias"},
        "peri": {"norm_pre.weight", "norm_pre.bias", "norm_out.weight", "norm_out.bias"},
        "keel": {"norm_pre.weight", "norm_pre.bias", "norm_post.weight", "norm_post.bias"},
        "rezero": {"weight"},
        "layerscale": {"norm_pre.weight", "norm_pre.bias", "weight"},
        "admin": {"norm_post.weight", "norm_post.bias", "skip_weight"},
        "fixup": {"weight", "bias_in", "bias_out"},
    }
    own = {"branch.weight", "branch.bias"}
    for name, keys in expected.items():
        assert set(Residual(nn.Linear(8, 8), scheme=name, index=0, depth=4).state_dict()) == own | keys


def test_a_branch_of_unknown_width_is_refused_with_advice():
    with pytest.raises(InputError, match="width"):
        Residual(nn.ReLU(), scheme="pre", index=0, depth=4)


def test_b2t_adds_the_block_input_before_the_last_norm():
    residual = Residual(branch(), scheme="b2t", index=0, depth=4)
    block_input = torch.randn(3, 16)
    expected = nn.functional.layer_norm(block_input + x + residual.branch(x), (16,))
    torch.testing.assert_close(residual(x, bypass=block_input), expected)


@pytest.mark.parametrize("name", SCHEMES)
def test_autocast_gives_finite_gradients_close_to_full_precision(name):
    model = Encoder(32, 2, 3, scheme=name, generator=torch.Generator().manual_seed(0))
    tokens = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
    full = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens)
    half.float().square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(
        half.float(), full, atol=0.15, rtol=0.1
    )  # bf16 has 8 bits: 0.4 % an op, 24 ops


@pytest.mark.parametrize("name", ["pre", "deepnorm", "layerscale", "b2t", "fixup", "admin"])
def test_compiled_stack_gives_the_same_output_without_graph_breaks(name):
    model = Encoder(16, 2, 2, scheme=name)
    tokens = torch.randn(2, 5, 16)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))


@pytest.mark.slow
def test_compiled_stack_gives_the_same_gradients():
    model = Encoder(16, 2, 2, scheme="pre", options=Options(lean=True, checkpoint_every=1))
    tokens = torch.randn(2, 5, 16)
    gradients = []
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        run(tokens).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "options", [Options(checkpoint_every=2), Options(lean=True)], ids=["checkpoint", "lean"]
)
@pytest.mark.parametrize("name", SCHEMES)
def test_recomputation_gives_the_very_same_gradients(name, options):
    tokens = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    gradients = []
    for choice in (Options(), options):
        model = Encoder(32, 2, 3, scheme=name, options=choice, generator=torch.Generator().manual_seed(0))
        (model(tokens, causal=True) * tokens).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert (plain is None) == (recomputed is None)
        if plain is not None and SCHEMES[name].branch is one:
            assert torch.equal(plain, recomputed)
        elif plain is not None:  # lean weights the branch before it adds, plain in one rounding
            torch.testing.assert_close(plain, recomputed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gelu", "relu", "swiglu"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_lean_memory_gives_the_very_same_gradients_for_every_part(kind, norm):
    tokens = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    gradients = []
    for lean in (False, True):
        options = Options(lean=lean, feed_forward=kind, norm=norm, qk_norm=True)
        model = Encoder(32, 2, 3, scheme="pre", options=options, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.bfloat16, enabled=norm == "layer"):
            loss = model(tokens).float().square().sum()
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_lean_memory_keeps_less_for_the_backward_pass():
    def kept(options: Options) -> int:
        """Bytes of the distinct storages that autograd holds, parameters excepted."""
        model = Encoder(64, 4, 4, scheme="pre", options=options)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        sizes: dict[int, int] = {}

        def note(t):
            if t.untyped_storage().data_ptr() not in own:
                sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            model(torch.randn(4, 32, 64)).sum()
        return sum(sizes.values())

    lean, plain = kept(Options(lean=True, positions="none")), kept(Options(positions="none"))
    assert lean < 0.45 * plain  # 6 of 16 tensors of the stream's size, and small statistics


@pytest.mark.slow
def test_a_stack_deeper_than_the_recursion_limit_survives_deepcopy_pickle_and_a_backward_pass():
    model = nn.Sequential(
        *(Residual(nn.Linear(2, 2), scheme="keel", index=i, depth=1100) for i in range(1100))
    )
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.state_dict().keys() == model.state_dict().keys()
        twin(torch.randn(1, 2)).sum().backward()


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_survives_deepcopy_and_pickle_with_the_same_function(name):
    model = Encoder(16, 2, 2, scheme=name)
    tokens = torch.randn(1, 4, 16)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(tokens), model(tokens))


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="this torch cannot shard on a CPU")
def test_fully_sharded_blocks_give_the_same_gradients():
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    tokens = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    plain, sharded = (
        Encoder(16, 2, 2, scheme="deepnorm", generator=torch.Generator().manual_seed(0)) for _ in range(2)
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        for block in sharded.stack.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        for model in (plain, sharded):
            model(tokens).square().sum().backward()
        for (name, a), b in zip(plain.named_parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad.full_tensor(), msg=name)
    finally:
        dist.destroy_process_group()


def test_the_repr_of_a_residual_block_names_its_scheme():
    model = MLP(4, 4, 2, 2)
    assert "scheme=" in repr(next(each for each in model.modules() if isinstance(each, Residual)))
