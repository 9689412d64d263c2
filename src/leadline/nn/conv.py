"""ResNet: pre-activation (v2), original (v1) and plain convolution stacks on the same `Residual`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from leadline.errors import InputError
from leadline.nn import init
from leadline.nn.residual import Residual
from leadline.nn.roles import RoleWeight, fill_branch_
from leadline.nn.scheme import Scheme, check_depth
from leadline.nn.schemes import find_scheme
from leadline.nn.streams import make_scheme_norm
from leadline.nn.uninitialized import make_conv, make_linear

Version = Literal["pre", "v1"]

# Cited: He et al. 2015, section 4.2 (CIFAR): full, half and quarter resolution, with doubling widths.
STAGES = 3
# The norm placement of the original ResNet.
V1_SCHEME = "res-post"
# Derived: E[relu(z)^2] of a unit Gaussian z.
RELU_SQUARE = 0.5


class ConvBranch(nn.Module):
    """Two 3x3 convolutions with a ReLU between them; the first halves the resolution where the width grows.

    `version="pre"` also has a ReLU at its start (after the scheme's `pre` norm), so that the stream itself has no
    nonlinearity. `has_norm` adds a batch norm between the convolutions, as in He et al. 2016.
    """

    def __init__(self, inputs: int, width: int, *, version: Version, has_norm: bool) -> None:
        super().__init__()
        self.inputs, self.width, self.version = inputs, width, version
        self.conv1 = make_conv(inputs, width, 3, stride=1 if inputs == width else 2, bias=not has_norm)
        self.conv2 = make_conv(width, width, 3, bias=not has_norm)
        self.norm_inner = nn.BatchNorm2d(width) if has_norm else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.relu(x) if self.version == "pre" else x)
        h = F.relu(h if self.norm_inner is None else self.norm_inner(h))
        y: Tensor = self.conv2(h)
        return y

    def role_weights(self) -> list[RoleWeight]:
        fed = RELU_SQUARE if self.version == "pre" else 1.0
        return [
            RoleWeight(role="fc1", weight=self.conv1.weight, second_moment=fed),
            RoleWeight(role="fc2", weight=self.conv2.weight, second_moment=RELU_SQUARE),
        ]


class Projection(nn.Module):
    """The skip path where the shape changes: an average over 2x2 pixels, then a 1x1 convolution of variance 1/n."""

    def __init__(self, inputs: int, width: int, generator: Generator | None = None) -> None:
        super().__init__()
        self.conv = make_conv(inputs, width, 1, bias=False)
        init.normal_(self.conv.weight, init.lecun(inputs, width), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.avg_pool2d(x, 2, ceil_mode=True))
        return y


class ResNet(nn.Module):
    """A ResNet from images (batch, channels, height, width) to (batch, outputs), with `depth` blocks.

    A block has two 3x3 convolutions. The blocks are divided into three stages; each stage after the first has half the
    resolution and twice the width. `version="pre"` is x + f(x) with every nonlinearity in the branch (He et al. 2016,
    arXiv 1603.05027). `"v1"` applies ReLU after the sum (He et al. 2015, arXiv 1512.03385), so that the skip path is
    not the identity and decays with depth. The norms of the scheme are batch norms. Scheme `none` is the plain stack:
    orthogonal convolutions that keep the size of the signal.
    """

    def __init__(  # noqa: PLR0913  (the names of the public contract, and a generator)
        self,
        inputs: int,
        width: int,
        depth: int,
        outputs: int,
        *,
        scheme: str | Scheme | None = None,
        version: Version = "pre",
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_depth(depth)
        if version not in ("pre", "v1"):
            raise InputError(
                expected="version: pre or v1", got=f"version={version!r}", fix="pass one of these names"
            )
        self.scheme = find_scheme(V1_SCHEME if scheme is None and version == "v1" else scheme, depth)
        check_one_stream(self.scheme)
        self.version = version
        self.stem = make_conv(inputs, width, 3)
        self.blocks = nn.ModuleList(_blocks(self.scheme, width, depth, version, generator))
        last = width * 2 ** ((depth - 1) * STAGES // depth)
        make_norm = make_scheme_norm(self.scheme, nn.BatchNorm2d)
        self.final_norm = make_norm(last) if self.scheme.final_norm else None
        self.output = make_linear(last, outputs, bias=True)
        self._fill_ends(generator)

    def _fill_ends(self, generator: Generator | None) -> None:
        for layer in (self.stem, self.output):
            init.normal_(layer.weight, init.lecun(*init.fans(layer.weight)), generator=generator)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        if self.scheme.zero_head:
            nn.init.zeros_(self.output.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = F.relu(block(x)) if self.version == "v1" else block(x)
        if self.final_norm is not None:
            x = self.final_norm(x)
        if self.version == "pre":
            x = F.relu(x)
        y: Tensor = self.output(x.mean((2, 3)))
        return y


def check_one_stream(scheme: Scheme) -> None:
    """Raise if the scheme has several streams, which cannot change their width from stage to stage."""
    if scheme.has_several_streams:
        raise InputError(
            expected="a scheme with one stream: a ResNet changes the width of its stream",
            got=f"scheme={scheme.name!r}",
            fix="use this scheme in an MLP, Encoder, EncoderDecoder or LanguageModel",
        )


def _blocks(
    scheme: Scheme, width: int, depth: int, version: Version, generator: Generator | None
) -> Iterator[Residual]:
    inputs = width
    for index in range(depth):
        outputs = width * 2 ** (index * STAGES // depth)
        branch = ConvBranch(inputs, outputs, version=version, has_norm=bool(scheme.norms))
        shortcut = Projection(inputs, outputs, generator) if scheme.has_skip and outputs != inputs else None
        if scheme.has_skip:
            fill_branch_(branch, scheme.base, generator=generator)
        else:
            _fill_plain_(branch, generator)
        yield Residual(
            branch, scheme=scheme, index=index, depth=depth, norm=nn.BatchNorm2d, shortcut=shortcut
        )
        inputs = outputs


def _fill_plain_(branch: ConvBranch, generator: Generator | None) -> None:
    """Delta-orthogonal convolutions at ReLU's critical gain, and zero biases."""
    for conv in (branch.conv1, branch.conv2):
        init.delta_orthogonal_(conv.weight, math.sqrt(1 / RELU_SQUARE), generator=generator)
        if conv.bias is not None:
            nn.init.zeros_(conv.bias)
