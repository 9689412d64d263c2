"""MLP and ResNet stacks on the same Residual."""

import pytest
import torch

from leadline.errors import InputError
from leadline.nn import MLP, SCHEMES, Residual, ResNet

images = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_makes_an_mlp_whose_blocks_all_get_gradients(name):
    model = MLP(8, 16, 4, 3, scheme=name, generator=torch.Generator().manual_seed(0))
    if model.scheme.zero_head:
        torch.nn.init.normal_(model.output.weight)
    out = model(torch.randn(32, 8))
    out.square().sum().backward()
    assert out.shape == (32, 3)
    assert all(any(p.grad.any() for p in block.parameters()) for block in model.blocks)


@pytest.mark.parametrize("version", ["pre", "v1"])
@pytest.mark.parametrize("name", [name for name, row in SCHEMES.items() if not row.has_several_streams])
def test_every_scheme_makes_a_resnet_with_finite_outputs_and_gradients(name, version):
    model = ResNet(3, 4, 6, 5, scheme=name, version=version, generator=torch.Generator().manual_seed(0))
    out = model(images)
    out.square().sum().backward()
    assert out.shape == (4, 5)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    assert all(isinstance(block, Residual) for block in model.blocks)


def test_a_resnet_refuses_a_scheme_with_several_streams():
    with pytest.raises(InputError, match="one stream"):
        ResNet(3, 4, 6, 5, scheme="mhc")


def test_the_default_v1_resnet_is_the_original_block():
    block = ResNet(3, 4, 3, 5, version="v1").blocks[0]
    x = torch.randn(2, 4, 8, 8)
    conv1, conv2 = block.branch.conv1, block.branch.conv2
    expected = x + block.norm_out(conv2(torch.relu(block.branch.norm_inner(conv1(x)))))
    torch.testing.assert_close(block(x), expected)


def test_widths_double_and_resolutions_halve_at_the_stage_borders():
    model = ResNet(3, 4, 6, 5, scheme="pre")
    assert [block.branch.width for block in model.blocks] == [4, 4, 8, 8, 16, 16]
    assert model.blocks[0].shortcut is None
    assert model.blocks[2].shortcut is not None


def test_a_plain_relu_mlp_of_100_layers_keeps_its_gradients_within_the_finite_width_band():
    """He-ReLU: Var[log] = 5 L/n, mean -2.5 L/n, so at L/n = 100/512 the log of the ratio is -0.49 with sd
    0.99."""
    model = MLP(512, 512, 100, 1, scheme="none", generator=torch.Generator().manual_seed(0))
    x = torch.randn(16, 512, requires_grad=True)
    model(x).sum().backward()
    grads = [block.branch.fc1.weight.grad.square().mean() for block in (model.blocks[0], model.blocks[-1])]
    assert abs(float((grads[0] / grads[1]).log())) < 0.49 + 4 * 0.99


def test_a_plain_convolution_stack_of_30_layers_keeps_its_signal():
    model = ResNet(3, 64, 15, 5, scheme="none", generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = model.stem(images)
        start = x.square().mean()
        for block in model.blocks:
            x = block(x)
    assert (
        abs(float((x.square().mean() / start).log())) < 0.6 + 4 * 1.1
    )  # 5 L/n over widths 64, 128, 256: 1.4


def test_an_unknown_resnet_version_is_refused():
    with pytest.raises(InputError, match="version"):
        ResNet(3, 4, 2, 5, version="v3")
