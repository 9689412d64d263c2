"""Samples that are compared with each other on purpose, and networks that make samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Two views of each image, one embedding each.


class SimCLR(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.projector = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
        self.bug = bug

    def embed(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        if self.bug == "features viewed across images":
            h = h.t().reshape(len(x), -1)
        return F.normalize(self.projector(h), dim=0 if self.bug == "normalized over the batch" else 1)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed(a), self.embed(a if self.bug == "the same view twice" else b)


@problem(
    "simclr",
    "contrastive",
    bug("features viewed across images", "mixed-samples", "reshape"),
    bug("normalized over the batch", "mixed-samples"),
    bug("the same view twice", "idle-input", "input[1]", note=True),
    bug("labels are all zero", "single-answer", "100 %"),
    bug("similarity minimized", "negated-loss"),
    bug("projector not in the optimizer", "forgotten-parameters", "projector.0.weight"),
)
def simclr(bug: str) -> Case:
    model = SimCLR(bug)
    images = torch.randn(16, 3, 11, 11)
    views = (images + 0.3 * torch.randn_like(images), images + 0.3 * torch.randn_like(images))

    def loss(embeddings: tuple[Tensor, Tensor]) -> Tensor:
        za, zb = embeddings
        labels = torch.zeros(len(za)).long() if bug == "labels are all zero" else torch.arange(len(za))
        value = F.cross_entropy(za @ zb.t() / 0.2, labels)
        return -value if bug == "similarity minimized" else value

    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "projector not in the optimizer" or not name.startswith("projector")
    ]
    return Case(model, views, None, loss, torch.optim.Adam(trained, lr=1e-3))


# Images and captions.


class TwoTowers(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16))
        self.token_embedding = nn.Embedding(40, 24)
        layer = nn.TransformerEncoderLayer(24, 2, 48, batch_first=bug != "captions mixed", dropout=0.0)
        self.text = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.text_projection = nn.Linear(24, 16, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))
        self.bug = bug

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        i = self.visual(image)
        t = self.text_projection(self.text(self.token_embedding(text))[:, 0])
        if self.bug == "text tower without gradient":
            t = t.detach()
        i, t = F.normalize(i, dim=-1), F.normalize(t, dim=-1)
        scale = self.logit_scale.exp()
        return scale * i @ (i.detach() if self.bug == "images against images" else t).t()


@problem(
    "clip",
    "contrastive",
    bug("captions mixed", "mixed-samples", "text.layers.0.self_attn"),
    bug("text tower without gradient", "blocked-path", "detach"),
    bug("images against images", "idle-input or discarded-results", "text", note=True),
    bug("logit scale not in the optimizer", "forgotten-parameters", "logit_scale"),
    bug("text tower frozen at random weights", "frozen-random-weights", "text", note=True),
)
def clip(bug: str) -> Case:
    model = TwoTowers(bug)
    if bug == "text tower frozen at random weights":
        model.text.requires_grad_(False)
        model.token_embedding.requires_grad_(False)
    trained = [
        each
        for name, each in model.named_parameters()
        if each.requires_grad and (bug != "logit scale not in the optimizer" or name != "logit_scale")
    ]
    batch = {"image": torch.randn(10, 3, 4, 4), "text": torch.randint(0, 40, (10, 7))}

    def loss(logits: Tensor) -> Tensor:
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2

    return Case(model, batch, None, loss, torch.optim.AdamW(trained, lr=1e-3))


# A variational autoencoder.


class VAE(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, 6)
        self.fc22 = nn.Linear(32, 6)
        self.fc3 = nn.Linear(6, 32)
        self.fc4 = nn.Linear(32, 64)
        self.bug = bug

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        if self.bug == "sampled without the reparameterization":
            return torch.distributions.Normal(mu, std).sample()
        return mu + torch.randn_like(std) * std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x))
        if self.bug == "codes centered over the batch":
            h = h - h.mean(0)
        mu, logvar = self.fc21(h), self.fc22(h)
        y = self.fc4(F.relu(self.fc3(self.reparameterize(mu, logvar))))
        return torch.sigmoid(y), mu, logvar


@problem(
    "vae",
    "generative",
    bug("sampled without the reparameterization", "blocked-path", "fc1"),
    bug("codes centered over the batch", "mixed-samples", "mean"),
    bug("sigmoid twice", "squashed-logits", "sigmoid"),
    bug("decoder not in the optimizer", "forgotten-parameters", "fc3.weight"),
    bug("black images", "idle-input", "input"),
    bug("reconstruction negated", "negated-loss"),
)
def vae(bug: str) -> Case:
    model = VAE(bug)
    x = (torch.rand(20, 64) < 0.3).float()
    if bug == "black images":
        x = torch.zeros_like(x)

    def loss(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        recon, mu, logvar = output
        if bug == "sigmoid twice":
            bce = F.binary_cross_entropy_with_logits(recon, x, reduction="sum")
        else:
            bce = F.binary_cross_entropy(recon, x, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return (-bce if bug == "reconstruction negated" else bce) + kld

    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "decoder not in the optimizer" or name.split(".")[0] not in ("fc3", "fc4")
    ]
    return Case(model, x, x.clone(), loss, torch.optim.Adam(trained, lr=1e-3))


# Denoising diffusion on points.


class Denoiser(nn.Module):
    def __init__(self, bug: str, width: int = 32) -> None:
        super().__init__()
        self.time = nn.Embedding(50, width)
        self.inp = nn.Linear(2, width)
        hidden = [nn.Linear(width, width) for _ in range(3)]
        self.hidden = hidden if bug == "layers in a tuple" else nn.ModuleList(hidden)
        self.out = nn.Linear(width, 2)
        self.bug = bug

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.inp(x)
        if self.bug == "time summed over the batch":
            h = h + self.time(t).sum(0)
        elif self.bug != "time not used":
            h = h + self.time(t)
        for layer in self.hidden:
            if self.bug == "each layer gets the first input":
                y = F.silu(layer(h))
            else:
                y = h = h + F.silu(layer(h))
        return self.out(y)


@problem(
    "diffusion",
    "diffusion",
    bug("layers in a tuple", "unregistered-parameters", "6"),
    bug("time summed over the batch", "mixed-samples", "sum"),
    bug("time not used", "idle-input", "t", note=True),
    bug("each layer gets the first input", "discarded-results", "hidden.0"),
    bug("noise loses its axis", "mixed-targets"),
    bug("noise maximized", "negated-loss"),
)
def diffusion(bug: str) -> Case:
    model = Denoiser(bug)
    x0, noise, t = torch.randn(32, 2), torch.randn(32, 2), torch.randint(0, 50, (32,))
    keep = torch.linspace(0.99, 0.01, 50)[t].unsqueeze(1)
    noisy = keep.sqrt() * x0 + (1 - keep).sqrt() * noise
    sign = -1 if bug == "noise maximized" else 1

    def loss(found: Tensor, noise: Tensor) -> Tensor:
        if bug == "noise loses its axis":
            return (found.norm(dim=1, keepdim=True) - noise.norm(dim=1)).square().mean()
        return sign * F.mse_loss(found, noise)

    batch = {"x": noisy, "t": t}
    return Case(model, batch, noise, loss, torch.optim.Adam(model.parameters(), lr=1e-3))


# An autoencoder of images, healthy although it is asked for its own input.


class ConvAutoencoder(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))
        self.bottleneck = nn.Linear(16, 16)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(4, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)
        )
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        if self.bug == "encoder under no_grad":
            with torch.no_grad():
                z = self.encoder(x)
        if self.bug == "code quantized by round":
            z = torch.round(z)
        if self.bug == "code reshaped across images":
            z = z.permute(1, 0, 2, 3).reshape(len(x), 16)
        z = self.bottleneck(z.reshape(len(x), 16)).view(len(x), 4, 2, 2)
        return self.decoder(z)


@problem(
    "conv-autoencoder",
    "generative",
    bug("encoder under no_grad", "blocked-path", "encoder"),
    bug("code quantized by round", "step-function", "round"),
    bug("code reshaped across images", "mixed-samples", "reshape"),
    bug("pixels from 0 to 255 as targets", "targets-out-of-scale"),
    bug("bottleneck added after the optimizer", "forgotten-parameters", "bottleneck.weight"),
)
def conv_autoencoder(bug: str) -> Case:
    model = ConvAutoencoder(bug)
    images = torch.rand(8, 1, 8, 8)
    targets = 255 * images if bug == "pixels from 0 to 255 as targets" else images.clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if bug == "bottleneck added after the optimizer":
        model.bottleneck = nn.Linear(16, 16)
    return Case(model, images, targets, F.mse_loss, optimizer)
