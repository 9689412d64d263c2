"""Pictures made anew: a variational autoencoder, a denoiser for diffusion, the judge of an adversarial pair."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# A variational autoencoder with the names of the well-known example.


class VAE(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc21 = nn.Linear(48, 8)
        self.fc22 = nn.Linear(48, 8)
        self.fc3 = nn.Linear(8, 48)
        self.fc4 = nn.Linear(48, 64)
        self.bug = bug

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        if self.bug == "sample of a distribution":
            return torch.distributions.Normal(mu, std).sample()
        return mu + torch.randn_like(std) * std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h1 = F.relu(self.fc1(x))
        mu = self.fc21(h1)
        logvar = self.fc21(h1) if self.bug == "mean and variance from one layer" else self.fc22(h1)
        h3 = F.relu(self.fc3(self.reparameterize(mu, logvar)))
        recon = self.fc4(h1 if self.bug == "decoder reads the encoder" else h3)
        if self.bug == "sigmoid and then logits":
            recon = torch.sigmoid(recon)
        if self.bug == "square batch transposed":
            recon = recon.t()
        return recon, mu, logvar


@problem(
    "handwriting-vae",
    "variational autoencoder",
    bug("sigmoid and then logits", "squashed-logits", "sigmoid"),
    bug("divergence with the wrong sign", "negated-loss or unbounded-loss"),
    bug("sample of a distribution", "blocked-path"),
    bug("pixels from 0 to 16", "targets-out-of-scale or unreachable-targets or unbounded-loss"),
    bug("mean and variance from one layer", "idle-modules", "fc22", note=True),
    bug("decoder reads the encoder", "discarded-results", "fc3"),
    bug("square batch transposed", "mixed-samples"),
    bug("first six tensors in the optimizer", "forgotten-parameters", "fc4"),
    part="sixth set",
)
def handwriting_vae(bug: str) -> Case:
    model = VAE(bug)
    pixels, _ = load_digits(return_X_y=True)
    x = torch.tensor(pixels[:64], dtype=torch.float32)
    x = x / 16
    target = x * 16 if bug == "pixels from 0 to 16" else x

    def loss_function(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        recon_x, mu, logvar = out
        bce = F.binary_cross_entropy_with_logits(recon_x, x, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        if bug == "divergence with the wrong sign":
            kld = -kld
        return (bce + kld) / len(x)

    params = list(model.parameters())
    if bug == "first six tensors in the optimizer":
        params = params[:6]
    return Case(model, x, target, loss_function, torch.optim.Adam(params, lr=3e-3))


# A denoiser for diffusion: convolutions with an embedding of the time and attention in the middle.


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, t: Tensor) -> Tensor:
        half = self.dim // 2
        freqs = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
        emb = t[:, None] * freqs[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class NoiseNet(nn.Module):
    def __init__(self, bug: str, dim: int = 64) -> None:
        super().__init__()
        self.init_conv = nn.Conv2d(1, dim, 3, padding=1)
        self.time_mlp = nn.Sequential(
            SinusoidalPosEmb(16), nn.Linear(16, dim), nn.GELU(), nn.Linear(dim, dim)
        )
        blocks = (
            nn.Sequential(nn.GroupNorm(8, dim), nn.SiLU(), nn.Conv2d(dim, dim, 3, padding=1))
            for _ in range(2)
        )
        self.blocks = tuple(blocks) if bug == "blocks in a tuple" else nn.ModuleList(blocks)
        self.norm = nn.GroupNorm(8, dim)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.final_conv = nn.Conv2d(dim, 1, 3, padding=1)
        self.bug = bug

    def attend(self, h: Tensor) -> Tensor:
        b, c, height, width = h.shape
        tokens = self.to_qkv(self.norm(h)).permute(0, 2, 3, 1)
        tokens = tokens.reshape(1 if self.bug == "pixels of all pictures attend" else b, -1, 3 * c)
        q, k, v = tokens.chunk(3, dim=-1)
        if self.bug != "long queries left as they are":
            q = q * c**-0.5
        sim = torch.einsum("bid,bjd->bij", q, k)
        out = torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v)
        return out.reshape(b, height, width, c).permute(0, 3, 1, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self.bug == "time divided and cut":
            t = (t / 1000).long()
        h = self.init_conv(x)
        emb = self.time_mlp(t.float())[:, :, None, None]
        for block in self.blocks:
            if self.bug == "sum with the time not kept":
                torch.add(h, emb)
                h = h + block(h)
            else:
                h = h + block(h + emb)
        h = h + self.attend(h)
        return self.final_conv(F.silu(h))


@problem(
    "handwriting-ddpm",
    "diffusion",
    bug("time divided and cut", "idle-input"),
    bug("asked for the picture it sees", "visible-answer or shifted-targets"),
    bug("pixels of all pictures attend", "mixed-samples"),
    bug("long queries left as they are", "unscaled-attention"),
    bug("sum with the time not kept", "discarded-results or idle-input"),
    bug("mean taken before the square", "mixed-targets"),
    bug("weights along the last axis", "mixed-targets"),
    bug("blocks in a tuple", "unregistered-parameters"),
    bug("optimizer holds the average", "foreign-optimizer or forgotten-parameters"),
    part="sixth set",
)
def handwriting_ddpm(bug: str) -> Case:
    model = NoiseNet(bug)
    ema_model = copy.deepcopy(model)
    alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)
    x_start = torch.tensor(load_digits().images[:8], dtype=torch.float32).unsqueeze(1) / 8 - 1
    t = torch.randint(50, 950, (8,))
    noise = torch.randn_like(x_start)
    a = alphas_cumprod[t].view(8, 1, 1, 1)
    x = a.sqrt() * x_start + (1 - a).sqrt() * noise
    target = x.clone() if bug == "asked for the picture it sees" else noise
    weight = (alphas_cumprod[t] / (1 - alphas_cumprod[t])).clamp(0.5, 5)
    if bug != "weights along the last axis":
        weight = weight.view(8, 1, 1, 1)

    def p_losses(out: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        target, weight = targets
        if bug == "mean taken before the square":
            return (weight * (out - target)).mean().square()
        return (weight * F.mse_loss(out, target, reduction="none")).mean()

    trained = ema_model if bug == "optimizer holds the average" else model
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3)
    return Case(model, {"x": x, "t": t}, (target, weight), p_losses, optimizer)


# The judge of an adversarial pair: one step on real and on made pictures.


class HardLeaky(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.ones_like(x), torch.full_like(x, -0.2))


class Discriminator(nn.Module):
    def __init__(self, bug: str, ndf: int = 16) -> None:
        super().__init__()
        hard = bug == "leaky relu written with constants"
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ndf, 2 * ndf, 3, 1, 1, bias=False),
            nn.BatchNorm2d(2 * ndf),
            HardLeaky() if hard else nn.LeakyReLU(0.2),
            nn.Conv2d(2 * ndf, 1, 3, 1, 0, bias=False),
        )
        self.last = nn.Softmax(dim=1) if bug == "softmax over the only unit" else nn.Sigmoid()
        self.bug = bug

    def judge(self, images: Tensor) -> Tensor:
        patches = self.main(images)
        if self.bug == "scores of the patches viewed by the batch":
            score = patches.view(-1, len(images)).mean(0)
        else:
            score = patches.flatten(1).mean(1)
        return self.last(score.unsqueeze(1)).squeeze(1)

    def forward(self, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
        made = self.judge(fake)
        return (made if self.bug == "made pictures judged twice" else self.judge(real)), made


def set_requires_grad(net: nn.Module, wanted: bool) -> None:
    for parameter in net.parameters():
        parameter.requires_grad = wanted


@problem(
    "gan-judge",
    "adversarial network",
    bug("made pictures called real", "single-answer", note=True),
    bug("made pictures judged twice", "idle-input", "real", note=True),
    bug("loss of the made pictures replaces the other", "discarded-results or single-answer or idle-input"),
    bug(
        "softmax over the only unit", "step-function or idle-input or motionless-step or unreachable-targets"
    ),
    bug("scores of the patches viewed by the batch", "mixed-samples or scrambled-axes"),
    bug("leaky relu written with constants", "step-function or blocked-path"),
    bug("optimizer of the maker", "foreign-optimizer or forgotten-parameters"),
    bug("only its last convolution thawed again", "frozen-random-weights", note=True),
    part="sixth set",
)
def gan_judge(bug: str) -> Case:
    net_g = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
    net_d = Discriminator(bug)
    real = torch.tensor(load_digits().images[100:124], dtype=torch.float32).unsqueeze(1) / 8 - 1
    fake = net_g(2 * torch.randn(24, 10)).detach()
    criterion = nn.BCELoss()
    if bug == "only its last convolution thawed again":
        set_requires_grad(net_d, False)
        set_requires_grad(net_d.main[-1], True)
    fake_label = 1.0 if bug == "made pictures called real" else 0.0
    labels = (torch.ones(24), torch.full((24,), fake_label))

    def loss(out: tuple[Tensor, Tensor], labels: tuple[Tensor, Tensor]) -> Tensor:
        err_d = criterion(out[0], labels[0])
        err_fake = criterion(out[1], labels[1])
        return err_fake if bug == "loss of the made pictures replaces the other" else err_d + err_fake

    trained = net_g if bug == "optimizer of the maker" else net_d
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3, betas=(0.5, 0.999))
    return Case(net_d, {"real": real, "fake": fake}, labels, loss, optimizer)
