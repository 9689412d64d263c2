"""Models that make pictures, and one that copies another: a VAE, a diffusion, a generator, a distillation."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from benchmarks.wiring.problems.classifiers import digits
from leadline import Case

# Digits through a narrow code with noise.


class DigitsVAE(nn.Module):
    def __init__(self, bug: str, code: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.fc_mu = nn.Linear(64, code)
        self.fc_logvar = nn.Linear(64, code)
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.pixels = nn.Linear(128, 64)
        self.bug = bug

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        if self.bug == "torch.normal for the code":
            return torch.normal(mu, std)
        if self.bug == "code made under no_grad":
            with torch.no_grad():
                return mu + torch.randn_like(std) * std
        return mu + torch.randn_like(std) * std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x.flatten(1))
        mu = self.fc_mu(h)
        logvar = self.fc_mu(h) if self.bug == "mean layer used for the variance" else self.fc_logvar(h)
        z = self.reparameterize(mu, logvar)
        made = torch.sigmoid(self.pixels(self.decoder(z)))
        shape = (len(x), 8, 8) if self.bug == "picture without the channel" else x.shape
        return made.view(shape), mu, logvar


@problem(
    "digits-vae",
    "variational autoencoder",
    bug("torch.normal for the code", "blocked-path or step-function"),
    bug("code made under no_grad", "blocked-path", "encoder"),
    bug("mean layer used for the variance", "idle-modules", "fc_logvar"),
    bug("divergence of copies", "constant-loss-term"),
    bug("pictures standardized, output a sigmoid", "unreachable-targets", "sigmoid"),
    bug("everything summed", "summed-loss", note=True),
    bug("evidence minimized", "negated-loss"),
    bug("picture without the channel", "mixed-targets"),
    bug("decoder not in the optimizer", "forgotten-parameters", "decoder"),
    part="fifth set",
)
def digits_vae(bug: str) -> Case:
    model = DigitsVAE(bug)
    images, _ = digits(96)
    goal = images
    if bug == "pictures standardized, output a sigmoid":
        goal = (images - images.mean()) / images.std()

    def loss(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mu, logvar = out
        if bug == "divergence of copies":
            mu, logvar = mu.data, logvar.data
        recon = 64 * (made - x).pow(2).mean()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
        if bug == "everything summed":
            return len(x) * recon + kl.sum()
        elbo = -recon - 0.1 * kl.mean()
        return elbo if bug == "evidence minimized" else -elbo

    parts = [model.encoder, model.fc_mu, model.fc_logvar]
    if bug != "decoder not in the optimizer":
        parts += [model.decoder, model.pixels]
    trained = [parameter for part in parts for parameter in part.parameters()]
    return Case(model, images, goal, loss, torch.optim.Adam(trained, lr=4e-3))


# Noise predicted at a random time; the model itself makes the noisy pictures and its loss.


class TimeBlock(nn.Module):
    def __init__(self, wide: int, bug: str) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, wide)
        self.conv = nn.Conv2d(wide, wide, 3, padding=1)
        self.time = nn.Linear(32, wide)
        self.gate = nn.Parameter(torch.ones(1))
        if bug == "gate and last layer start at zero":
            nn.init.zeros_(self.gate)
            nn.init.zeros_(self.conv.weight)
            nn.init.zeros_(self.conv.bias)
        self.bug = bug

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        if self.bug == "own norm over the batch":
            h = (x - x.mean((0, 2, 3), keepdim=True)) / (x.std((0, 2, 3), keepdim=True) + 1e-5)
        else:
            h = self.norm(x)
        shift = self.time(emb)
        if self.bug != "time not added":
            h = h + shift[:, :, None, None]
        return x + self.gate * self.conv(F.silu(h))


class DigitsDDPM(nn.Module):
    def __init__(self, bug: str, steps: int = 100, wide: int = 32) -> None:
        super().__init__()
        alphas = torch.cumprod(1 - torch.linspace(1e-3, 0.08, steps), 0)
        self.register_buffer("alphas", alphas)
        self.first = nn.Conv2d(1, wide, 3, padding=1)
        blocks = [TimeBlock(wide, bug) for _ in range(3)]
        self.blocks = blocks if bug == "blocks in a plain list" else nn.ModuleList(blocks)
        self.last = nn.Conv2d(wide, 1, 3, padding=1)
        self.steps, self.bug = steps, bug

    def embed(self, t: Tensor) -> Tensor:
        frequency = torch.exp(-math.log(1000) * torch.arange(16) / 16)
        angle = (t // self.steps if self.bug == "time divided as an integer" else t)[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], 1)

    def forward(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        a = self.alphas[t]
        if self.bug != "alpha without the picture axes":
            a = a[:, None, None, None]
        noisy = a.sqrt() * x0 + (1 - a).sqrt() * noise
        emb = self.embed(t)
        h = self.first(noisy)
        for block in self.blocks:
            h = block(h, emb)
        error = self.last(h) - noise
        if self.bug == "mean before the square":
            return error.mean(0).pow(2).mean()
        return error.pow(2).sum() if self.bug == "sum of squares" else error.pow(2).mean()


@problem(
    "digits-ddpm",
    "diffusion",
    bug("alpha without the picture axes", "mixed-samples"),
    bug("own norm over the batch", "mixed-samples", "mean"),
    bug("time not added", "discarded-results or idle-input"),
    bug("time divided as an integer", "idle-input"),
    bug("mean before the square", "mixed-targets or mixed-samples", "mean"),
    bug("sum of squares", "summed-loss", note=True),
    bug("blocks in a plain list", "unregistered-parameters"),
    bug("gate and last layer start at zero", "stuck-zeros", "blocks.0"),
    part="fifth set",
)
def digits_ddpm(bug: str) -> Case:
    model = DigitsDDPM(bug)
    x0 = 2 * digits(8)[0] - 1
    batch = {"x0": x0, "t": torch.randint(0, 100, (8,)), "noise": torch.randn_like(x0)}
    return Case(model, batch, None, None, torch.optim.AdamW(model.parameters(), lr=2e-3))


# The step of a conditional generator against a critic that was trained before and is fixed in this step.


class Generator(nn.Module):
    def __init__(self, bug: str, noise: int = 8) -> None:
        super().__init__()
        self.label = nn.Embedding(10, 8)
        self.body = nn.Sequential(
            nn.Linear(noise + 8, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
        )
        self.out = nn.Linear(64, 64)
        self.bug = bug

    def forward(self, z: Tensor, label: Tensor) -> Tensor:
        condition = self.label(label)
        if self.bug == "condition replaced by zeros":
            condition = torch.zeros_like(condition)
        picture = torch.sigmoid(self.out(self.body(torch.cat([z, condition], 1))))
        if self.bug == "pictures rounded to gray levels":
            picture = (picture * 16).round() / 16
        if self.bug == "contrast set by the batch":
            picture = (picture - picture.amin()) / (picture.amax() - picture.amin())
        return picture


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.label = nn.Embedding(10, 16)
        self.body = nn.Sequential(
            nn.Linear(64 + 16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def forward(self, picture: Tensor, label: Tensor) -> Tensor:
        return self.body(torch.cat([picture, self.label(label)], 1))


class GeneratorStep(nn.Module):
    def __init__(self, generator: Generator, critic: Critic, bug: str) -> None:
        super().__init__()
        self.generator, self.critic = generator, critic
        self.bug = bug

    def forward(self, z: Tensor, label: Tensor) -> Tensor:
        score = self.critic(self.generator(z, label), label)
        return torch.sigmoid(score) if self.bug == "sigmoid and then with logits" else score


def trained_critic(pictures: Tensor, labels: Tensor) -> Critic:
    """A critic that tells digits from noise and from digits with a wrong label."""
    critic = Critic()
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3)
    for _ in range(12):
        real = critic(pictures + 0.1 * torch.randn_like(pictures), labels)
        noise = critic(torch.rand_like(pictures), labels)
        wrong = critic(pictures, (labels + torch.randint(1, 10, labels.shape)) % 10)
        loss = F.softplus(-real).mean() + 0.5 * F.softplus(noise).mean() + 0.5 * F.softplus(wrong).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return critic


@problem(
    "digits-generator",
    "generative adversarial network",
    bug("condition replaced by zeros", "discarded-results or blocked-path", "label"),
    bug("pictures rounded to gray levels", "step-function", "round"),
    bug("contrast set by the batch", "mixed-samples"),
    bug("noise is all zeros", "idle-input", "z"),
    bug("sigmoid and then with logits", "squashed-logits", "sigmoid"),
    bug("generator left in eval mode", "evaluation-mode", "generator"),
    bug("generator frozen with the critic", "frozen-random-weights", "generator"),
    bug("optimizer has the critic", "forgotten-parameters or foreign-optimizer"),
    bug("sign of the generator loss", "negated-loss"),
    part="fifth set",
)
def digits_generator(bug: str) -> Case:
    pictures, labels = digits(64)
    model = GeneratorStep(Generator(bug), trained_critic(pictures.flatten(1), labels), bug)
    optimized = model.critic if bug == "optimizer has the critic" else model.generator
    optimizer = torch.optim.Adam(optimized.parameters(), lr=1e-3, betas=(0.5, 0.999))
    model.critic.requires_grad_(False)
    if bug == "generator frozen with the critic":
        model.requires_grad_(False)
        model.generator.out.requires_grad_(True)
    if bug == "generator left in eval mode":
        model.generator.eval()
    z = torch.zeros(64, 8) if bug == "noise is all zeros" else torch.randn(64, 8)
    sign = -1 if bug == "sign of the generator loss" else 1

    def loss(score: Tensor, real: Tensor) -> Tensor:
        return sign * F.binary_cross_entropy_with_logits(score, real)

    return Case(model, {"z": z, "label": labels}, torch.ones(64, 1), loss, optimizer)


# A small student learns from a trained teacher and from the labels.


class Distiller(nn.Module):
    def __init__(self, teacher: nn.Module, bug: str) -> None:
        super().__init__()
        self.teacher = teacher
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
        self.bug = bug

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            teacher = self.teacher(images)
        student = self.student(images)
        if self.bug == "student returns probabilities":
            student = student.softmax(1)
        return student, teacher


def trained_teacher(images: Tensor, labels: Tensor) -> nn.Module:
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(teacher(images), labels).backward()
        optimizer.step()
    return teacher.requires_grad_(False)


@problem(
    "digits-distillation",
    "distillation",
    bug("kl_div gets the arguments swapped", "unnormalized-scores or non-finite", "kl_div"),
    bug("kl_div gets raw scores", "unnormalized-scores", "kl_div"),
    bug("kl_div gets probabilities", "unnormalized-scores", "kl_div"),
    bug("student softened over the batch", "mixed-targets or mixed-samples or unnormalized-scores"),
    bug("student detached beside the teacher", "constant-loss-term"),
    bug("student returns probabilities", "squashed-logits", "softmax"),
    bug("optimizer of an earlier student", "foreign-optimizer or forgotten-parameters"),
    bug("divergence subtracted", "negated-loss"),
    part="fifth set",
)
def digits_distillation(bug: str) -> Case:
    images, labels = digits(80)
    model = Distiller(trained_teacher(images, labels), bug)
    heat = 2.0

    def soft_loss(student: Tensor, teacher: Tensor) -> Tensor:
        dim = 0 if bug == "student softened over the batch" else 1
        log_p, q = F.log_softmax(student / heat, dim=dim), F.softmax(teacher / heat, dim=1)
        if bug == "kl_div gets the arguments swapped":
            return F.kl_div(q, log_p, reduction="batchmean")
        if bug == "kl_div gets raw scores":
            log_p = student / heat
        if bug == "kl_div gets probabilities":
            log_p = F.softmax(student / heat, dim=1)
        if bug == "student detached beside the teacher":
            log_p = log_p.detach()
        return F.kl_div(log_p, q, reduction="batchmean")

    def loss(out: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        student, teacher = out
        soft = heat**2 * soft_loss(student, teacher)
        if bug == "divergence subtracted":
            soft = -soft
        return 0.9 * soft + 0.1 * F.cross_entropy(student, labels)

    student = nn.Linear(64, 10) if bug == "optimizer of an earlier student" else model.student
    return Case(model, images, labels, loss, torch.optim.Adam(student.parameters(), lr=3e-3))
