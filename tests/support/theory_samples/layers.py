"""Samples of layers: products with weights, norms, reductions, pooling, dropout and softmax."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.theory_samples.case import COUNT, IMAGE, MANY, VOLUME, Case, X

TOKENS = torch.randint(4096, (32, 64), generator=torch.Generator().manual_seed(5))
SAMPLED = 0.01  # softmax weights come from a fixed sample of rows, at a spread rounded to 1/50
MATRIX = ((32, 32, 64), (128, 64))
LAYERS: dict[str, Case] = {
    "linear": Case(F.linear, MATRIX, draws=MANY),
    "bilinear": Case(lambda a, b, w: F.bilinear(a, b, w), ((256, 32), (256, 32), (64, 32, 32)), draws=MANY),
    "matmul": Case(torch.matmul, ((64, 32, 32), (64, 32, 32)), draws=MANY),
    "mm": Case(torch.mm, ((512, 128), (128, 512)), draws=MANY),
    "bmm": Case(torch.bmm, ((64, 32, 32), (64, 32, 32)), draws=MANY),
    "mv": Case(torch.mv, ((8192, 64), (64,)), draws=MANY, gradient=False),
    "inner": Case(torch.inner, ((512, 128), (512, 128)), draws=MANY),
    "addmm": Case(lambda x, b, w: torch.addmm(b, x, w), ((1024, 64), (128,), (64, 128)), draws=MANY),
    "grouped_mm": Case(
        lambda x, w: F.grouped_mm(x, w, offs=torch.tensor([100, 600, 700, 1024], dtype=torch.int32)),
        ((1024, 64), (4, 64, 128)),
        draws=MANY,
    ),
    "baddbmm": Case(
        lambda x, b, w: torch.baddbmm(b, x, w), ((64, 32, 32), (64, 32, 32), (64, 32, 32)), draws=MANY
    ),
    "einsum": Case(lambda a, b: torch.einsum("bij,bjk->bik", a, b), ((64, 32, 32), (64, 32, 32)), draws=MANY),
    "conv1d": Case(lambda x, w: F.conv1d(x, w, padding=1), ((16, 16, 128), (32, 16, 3)), draws=MANY),
    "conv2d": Case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=2, groups=2), (*IMAGE, (32, 8, 5, 5)), draws=MANY
    ),
    "conv3d": Case(
        lambda x, w: F.conv3d(x, w, dilation=2), ((4, 8, 12, 12, 12), (16, 8, 2, 2, 2)), draws=MANY
    ),
    "conv_transpose1d": Case(
        lambda x, w: F.conv_transpose1d(x, w, stride=2), ((16, 16, 128), (16, 32, 4)), draws=MANY
    ),
    "conv_transpose2d": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (*IMAGE, (16, 8, 4, 4)), draws=MANY
    ),
    "conv_transpose3d": Case(
        lambda x, w: F.conv_transpose3d(x, w), ((4, 8, 8, 8, 8), (8, 16, 2, 2, 2)), draws=MANY
    ),
    "add": Case(lambda x, y: x + 2 * y, X * 2, mean=0.5),
    "sub": Case(lambda x, y: x - y, X * 2, mean=0.5),
    "rsub": Case(lambda x: torch.rsub(x, 1.0), mean=0.5),
    "mul": Case(lambda x, y: x * y, X * 2, mean=0.5, draws=MANY),
    "div": Case(lambda x: x / 3.0, mean=0.5),
    "neg": Case(torch.neg, mean=0.5),
    "prelu": Case(lambda x: F.prelu(x, torch.full((1,), 0.25))),
    "softmax": Case(lambda x: x.softmax(-1), draws=MANY, beyond=SAMPLED),
    "log_softmax": Case(lambda x: x.log_softmax(-1)),
    "layer_norm": Case(lambda x: F.layer_norm(x, (64,)), mean=1.0),
    "rms_norm": Case(lambda x: F.rms_norm(x, (64,)), mean=1.0),
    "batch_norm": Case(lambda x: F.batch_norm(x, None, None, training=True), IMAGE, mean=1.0),
    "group_norm": Case(lambda x: F.group_norm(x, 4), IMAGE, mean=1.0),
    "instance_norm": Case(lambda x: F.instance_norm(x), IMAGE, mean=1.0),
    "normalize": Case(lambda x: F.normalize(x, dim=-1)),
    "mean": Case(lambda x: x.mean(-1), mean=0.2, draws=MANY),
    "sum": Case(lambda x: x.sum(-1), mean=0.2, draws=MANY),
    "var": Case(lambda x: x.var(-1), mean=0.2, draws=MANY),
    "std": Case(lambda x: x.std(-1), mean=0.2, draws=MANY),
    "norm": Case(lambda x: x.norm(dim=-1), draws=MANY),
    "vector_norm": Case(lambda x: torch.linalg.vector_norm(x, dim=-1), draws=MANY),
    "logsumexp": Case(lambda x: x.logsumexp(-1), std=0.5, draws=MANY, beyond=SAMPLED),
    "cumsum": Case(lambda x: x.cumsum(1), ((128, 32, 64),), draws=MANY),
    "avg_pool2d": Case(lambda x: F.avg_pool2d(x, 2), IMAGE, mean=0.5),
    "avg_pool1d": Case(lambda x: F.avg_pool1d(x, 4), ((16, 32, 256),)),
    "adaptive_avg_pool2d": Case(lambda x: F.adaptive_avg_pool2d(x, 4), IMAGE, mean=0.5, draws=MANY),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 2), IMAGE, mean=0.5),
    "max_pool1d": Case(lambda x: F.max_pool1d(x, 4), ((16, 32, 256),)),
    "adaptive_max_pool2d": Case(lambda x: F.adaptive_max_pool2d(x, 8), IMAGE),
    "interpolate": Case(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), IMAGE),
    "glu": Case(lambda x: F.glu(x, -1), draws=MANY),
    "dropout": Case(lambda x: F.dropout(x, 0.3), mean=0.5, draws=MANY),
    "dot": Case(torch.dot, ((COUNT,), (COUNT,)), mean=1.0),
    "addmv": Case(lambda w, b, x: torch.addmv(b, w, x), ((2048, 64), (2048,), (64,)), draws=MANY),
    "addcmul": Case(lambda x: torch.addcmul(x, x, x, value=0.5), mean=0.5, draws=MANY),
    "addcdiv": Case(lambda x: torch.addcdiv(x, x, x, value=0.5), mean=3.0, std=0.2),
    "lerp": Case(lambda x: torch.lerp(x, x * x, 0.3), mean=0.5, draws=MANY),
    "dropout1d": Case(lambda x: F.dropout1d(x, 0.3), ((512, 64, 4),), draws=MANY),
    "dropout2d": Case(lambda x: F.dropout2d(x, 0.3), ((512, 64, 2, 2),), draws=MANY),
    "dropout3d": Case(lambda x: F.dropout3d(x, 0.3), ((512, 64, 2, 2, 1),), draws=MANY),
    "feature_dropout": Case(
        lambda x: torch.feature_dropout(x, 0.3, train=True), ((512, 64, 2, 2),), draws=MANY
    ),
    "native_dropout": Case(lambda x: torch.native_dropout(x, 0.3, train=True)[0], mean=0.5, draws=MANY),
    "embedding": Case(lambda table: F.embedding(TOKENS, table), ((4096, 64),), mean=0.5, gradient=False),
    "rrelu": Case(lambda x: F.rrelu(x, 0.1, 0.9, training=True)),
    "softmin": Case(lambda x: F.softmin(x, -1), draws=MANY, beyond=SAMPLED, within=True),
    "safe_softmax": Case(lambda x: torch._safe_softmax(x, -1), draws=MANY, beyond=SAMPLED),
    "native_layer_norm": Case(lambda x: torch.native_layer_norm(x, (64,), None, None, 1e-5)[0], mean=1.0),
    "native_batch_norm": Case(
        lambda x: torch.native_batch_norm(x, None, None, None, None, training=True, momentum=0.1, eps=1e-5)[
            0
        ],
        IMAGE,
        mean=1.0,
    ),
    "nanmean": Case(lambda x: x.nanmean(-1), mean=0.2, draws=MANY),
    "nansum": Case(lambda x: x.nansum(-1), mean=0.2, draws=MANY),
    "var_mean": Case(lambda x: torch.var_mean(x, -1)[0], mean=0.2, draws=MANY),
    "std_mean": Case(lambda x: torch.std_mean(x, -1)[0], mean=0.2, draws=MANY),
    "avg_pool3d": Case(lambda x: F.avg_pool3d(x, 2), VOLUME, mean=0.5),
    "adaptive_avg_pool1d": Case(lambda x: F.adaptive_avg_pool1d(x, 16), ((16, 32, 256),), mean=0.5),
    "adaptive_avg_pool3d": Case(lambda x: F.adaptive_avg_pool3d(x, 4), VOLUME, mean=0.5, draws=MANY),
    "max_pool3d": Case(lambda x: F.max_pool3d(x, 2), VOLUME, mean=0.5),
    "max_pool1d_with_indices": Case(lambda x: F.max_pool1d_with_indices(x, 4)[0], ((16, 32, 256),), mean=0.5),
    "max_pool2d_with_indices": Case(lambda x: F.max_pool2d_with_indices(x, 2)[0], IMAGE, mean=0.5),
    "max_pool3d_with_indices": Case(lambda x: F.max_pool3d_with_indices(x, 2)[0], VOLUME, mean=0.5),
    "adaptive_max_pool1d": Case(lambda x: F.adaptive_max_pool1d(x, 64), ((16, 32, 256),)),
    "adaptive_max_pool3d": Case(lambda x: F.adaptive_max_pool3d(x, 8), VOLUME),
}
