"""Making things: sound from spectra, samples from an energy, pictures in one step, sentences about pictures."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Sound from its spectrum: transposed convolutions, and spectra of two resolutions as the loss.


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation, padding=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(F.leaky_relu(x, 0.1))


class Vocoder(nn.Module):
    def __init__(self, bug: str, bands: int = 16, channels: int = 32) -> None:
        super().__init__()
        self.pre = nn.Conv1d(bands, channels, 5, padding=2)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(channels // 2**i, channels // 2 ** (i + 1), 8, 4, 2) for i in range(2)
        )
        units = [[ResidualUnit(channels // 2 ** (i + 1), d) for d in (1, 3)] for i in range(2)]
        if bug == "kernels in a list of lists":
            self.units = units
        else:
            self.units = nn.ModuleList(nn.ModuleList(each) for each in units)
        self.post = nn.Conv1d(channels // 4, 1, 5, padding=2)
        self.bug = bug

    def forward(self, spectrum: Tensor) -> Tensor:
        if self.bug == "bands before the batch":
            spectrum = spectrum.transpose(0, 1).reshape(spectrum.shape)
        x = self.pre(spectrum)
        for up, units in zip(self.ups, self.units, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            if self.bug == "sum of the units overwritten":
                for unit in units:
                    total = unit(x)
                x = total
            else:
                x = sum(unit(x) for unit in units) / len(units)
        wave = self.post(F.leaky_relu(x)).tanh()
        if self.bug == "quantized to 8 bits":
            wave = (wave * 127).round() / 127
        if self.bug == "loudness of the whole batch":
            wave = wave / wave.abs().max()
        return wave.squeeze(1)


def spectra(wave: Tensor, size: int) -> Tensor:
    window = torch.hann_window(size)
    return torch.stft(wave, size, size // 4, window=window, return_complex=True).abs()


@problem(
    "vocoder",
    "vocoder",
    bug("kernels in a list of lists", "unregistered-parameters", "8"),
    bug("bands before the batch", "mixed-samples"),
    bug("sum of the units overwritten", "discarded-results", "units.0.0"),
    bug("quantized to 8 bits", "step-function", "round"),
    bug("loudness of the whole batch", "mixed-samples", "max"),
    bug("waves as 16-bit integers", "targets-out-of-scale"),
    bug("spectra pushed apart", "negated-loss"),
    bug("last layer not in the optimizer", "forgotten-parameters", "post.weight"),
    part="fourth set",
)
def vocoder(bug: str) -> Case:
    model = Vocoder(bug)
    time = torch.arange(256) / 256
    pitch = torch.rand(6, 1) * 20 + 5
    wave = 0.5 * torch.sin(2 * math.pi * pitch * time) + 0.05 * torch.randn(6, 256)
    spectrum = F.avg_pool1d(spectra(wave, 30), 1)[:, :16, :]
    spectrum = F.interpolate(spectrum, 16).add(1e-2).log()
    if bug == "waves as 16-bit integers":
        wave = (wave * 32767).round()
    sign = -1 if bug == "spectra pushed apart" else 1

    def loss(made: Tensor, wave: Tensor) -> Tensor:
        total = sum(F.l1_loss(spectra(made, size), spectra(wave, size)) for size in (32, 64))
        return sign * (total + F.l1_loss(made, wave))

    left_out = "post" if bug == "last layer not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(model, spectrum, wave, loss, torch.optim.AdamW(trained, lr=1e-3, betas=(0.8, 0.99)))


# An energy, learned by matching the score of data with noise: the gradient of the network by its own input.


class Energy(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.first = nn.Linear(2, 64)
        self.noise = nn.Linear(1, 64)
        self.second = nn.Linear(64, 64)
        self.out = nn.Linear(64, 1)
        self.bug = bug

    def energy(self, x: Tensor, sigma: Tensor) -> Tensor:
        h = F.silu(self.first(x))
        if self.bug != "noise level not added":
            h = h + self.noise(sigma.log())
        if self.bug == "hidden units centered over the batch":
            h = h - h.mean(0)
        h = F.silu(self.second(h))
        return self.out(h)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            total = self.energy(x, sigma).sum()
            if self.bug == "energies joined before the derivative":
                total = self.energy(x, sigma).squeeze(1).logsumexp(0)
            return -torch.autograd.grad(total, x, create_graph=True)[0]


@problem(
    "energy-score",
    "energy-based model",
    bug("noise level not added", "idle-input", "sigma", note=True),
    bug("hidden units centered over the batch", "mixed-samples"),
    bug("energies joined before the derivative", "mixed-samples"),
    bug("targets with an axis between", "mixed-targets"),
    bug("score turned away", "negated-loss"),
    bug("first layer not in the optimizer", "forgotten-parameters", "first.weight"),
    part="fourth set",
)
def energy_score(bug: str) -> Case:
    model = Energy(bug)
    angle = torch.rand(64, 1) * 2 * math.pi
    clean = torch.cat([angle.cos(), angle.sin()], 1)
    sigma = torch.rand(64, 1) * 0.5 + 0.2
    noise = torch.randn(64, 2)
    target = -noise / sigma
    if bug == "targets with an axis between":
        target = target.unsqueeze(1)
    sign = -1 if bug == "score turned away" else 1

    def loss(score: Tensor, target: Tensor) -> Tensor:
        return sign * (sigma * (score - target)).pow(2).mean()

    left_out = "first" if bug == "first layer not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"x": clean + sigma * noise, "sigma": sigma}
    return Case(model, inputs, target, loss, torch.optim.Adam(trained, lr=2e-3))


# A picture in one step: two noise levels of one path must lead to the same picture, one of them by a slow copy.


class Denoiser(nn.Module):
    def __init__(self, bug: str, wide: int = 24) -> None:
        super().__init__()
        self.into = nn.Conv2d(1, wide, 3, padding=1)
        self.level = nn.Sequential(nn.Linear(1, wide), nn.SiLU(), nn.Linear(wide, wide))
        self.body = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(4, wide) for _ in range(3))
        self.out = nn.Conv2d(wide, 1, 3, padding=1)
        self.bug = bug

    def forward(self, noisy: Tensor, t: Tensor) -> Tensor:
        h = self.into(noisy)
        if self.bug == "first layer under no_grad":
            with torch.no_grad():
                h = self.into(noisy)
        level = self.level(t.log()[:, None] / 4)
        if self.bug == "level of the mean time":
            level = self.level(t.log().mean()[None, None] / 4)
        if self.bug == "level not added":
            level = torch.zeros_like(level)
        for conv, norm in zip(self.body, self.norms, strict=True):
            g = conv(F.silu(norm(h) + level[:, :, None, None]))
            h = h + g
        skip = 0.25 / ((t - 0.01) ** 2 + 0.25)
        scale = 0.5 * (t - 0.01) / (t**2 + 0.25).sqrt()
        return skip[:, None, None, None] * noisy + scale[:, None, None, None] * self.out(h)


class ConsistencyPair(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.online = Denoiser(bug)
        self.slow = copy.deepcopy(self.online).requires_grad_(False)
        self.bug = bug

    def forward(self, picture: Tensor, noise: Tensor, later: Tensor, sooner: Tensor) -> tuple[Tensor, Tensor]:
        made = self.online(picture + later[:, None, None, None] * noise, later)
        with torch.no_grad():
            time = later if self.bug == "slow copy at the later time" else sooner
            goal = self.slow(picture + time[:, None, None, None] * noise, time)
        return made, goal


@problem(
    "consistency",
    "consistency model",
    bug("level of the mean time", "mixed-samples", "mean"),
    bug("level not added", "discarded-results or blocked-path", "level"),
    bug("first layer under no_grad", "blocked-path", "online.into"),
    bug("slow copy at the later time", "idle-input", "sooner", note=True),
    bug("optimizer got the slow copy", "forgotten-parameters or foreign-optimizer"),
    bug("distance negated", "negated-loss"),
    part="fourth set",
)
def consistency(bug: str) -> Case:
    model = ConsistencyPair(bug)
    picture = torch.zeros(10, 1, 12, 12)
    for index in range(10):
        picture[index, 0, index % 6 : index % 6 + 4, 3:9] = 1
    step = torch.rand(10)
    sooner, later = 0.05 + step, 0.15 + 1.3 * step
    sign = -1 if bug == "distance negated" else 1

    def loss(out: tuple[Tensor, Tensor]) -> Tensor:
        made, goal = out
        return sign * (((made - goal) ** 2 + 1e-4).sqrt() - 1e-2).mean()

    part = model.slow if bug == "optimizer got the slow copy" else model.online
    inputs = {"picture": picture, "noise": torch.randn_like(picture), "later": later, "sooner": sooner}
    return Case(model, inputs, None, loss, torch.optim.RAdam(part.parameters(), lr=1e-3))


# A sentence about a picture: regions of a convolution, and an LSTM that attends to them word by word.


class Captioner(nn.Module):
    def __init__(self, bug: str, words: int = 37, wide: int = 32) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, wide, 3, 2, 1), nn.ReLU()
        )
        self.words = nn.Embedding(words, wide, padding_idx=0)
        self.start = nn.Linear(wide, wide)
        self.query = nn.Linear(wide, wide)
        self.cell = nn.LSTMCell(2 * wide, wide)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(wide, words)
        self.bug = bug

    def forward(self, pictures: Tensor, caption: Tensor) -> Tensor:
        regions = self.cnn(pictures)
        n, wide = regions.shape[:2]
        if self.bug == "regions viewed without permute":
            regions = regions.reshape(-1, n, wide).transpose(0, 1)
        else:
            regions = regions.flatten(2).transpose(1, 2)
        h = self.start(regions.mean(1)).tanh()
        c = torch.zeros_like(h)
        scores = []
        for t in range(caption.shape[1]):
            weight = torch.einsum("nrd,nd->nr", regions, self.query(h))
            weight = (weight / wide**0.5).softmax(0 if self.bug == "attention over the pictures" else 1)
            seen = torch.einsum("nr,nrd->nd", weight, regions)
            if self.bug == "regions not attended":
                seen = torch.zeros_like(seen)
            word = self.words(caption[:, t])
            if self.bug == "state begins anew at each word":
                h, c = self.start(regions.mean(1)).tanh(), torch.zeros_like(c)
            h, c = self.cell(torch.cat([word, seen], 1), (h, c))
            scores.append(self.head(self.drop(h)))
        axis = 0 if self.bug == "steps stacked first" else 1
        out = torch.stack(scores, axis)
        return out.log_softmax(-1) if self.bug != "log_softmax missing" else out


@problem(
    "captions",
    "image captioning",
    bug("regions viewed without permute", "mixed-samples"),
    bug("attention over the pictures", "mixed-samples", "softmax"),
    bug("regions not attended", "discarded-results or blocked-path", "query"),
    bug("state begins anew at each word", "unused-past"),
    bug("steps stacked first", "mixed-targets or shifted-targets"),
    bug("log_softmax missing", "unnormalized-scores"),
    bug("asked for the word it reads", "shifted-targets", "own position"),
    bug("padding is a word, too", "single-answer or unmasked-padding", note=True),
    part="fourth set",
)
def captions(bug: str) -> Case:
    model = Captioner(bug)
    first = torch.randint(1, 37, (14, 1))
    text = (first * 2 + 5 * torch.arange(11)) % 36 + 1
    length = torch.randint(5, 12, (14, 1))
    text = text.masked_fill(torch.arange(11) >= length, 0)
    pictures = torch.randn(14, 3, 16, 16) + first.view(14, 1, 1, 1) / 20
    caption, following = text[:, :-1], text[:, 1:]
    if bug == "asked for the word it reads":
        following = caption.clone()
    ignored = -100 if bug == "padding is a word, too" else 0

    def loss(scores: Tensor, following: Tensor) -> Tensor:
        return F.nll_loss(scores.reshape(-1, 37), following.reshape(-1), ignore_index=ignored)

    inputs = {"pictures": pictures, "caption": caption}
    return Case(model, inputs, following, loss, torch.optim.Adam(model.parameters(), lr=2e-3))
