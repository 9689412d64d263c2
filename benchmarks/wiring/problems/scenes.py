"""Views of scenes: rendering, enlarging, films, hidden patches, two views of one picture, separated sounds."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# A radiance field: colors and densities along each ray, blended to one pixel.


class RadianceField(nn.Module):
    def __init__(self, bug: str, width: int = 32) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        fine = [nn.Linear(width, width) for _ in range(3)]
        self.fine = fine if bug == "fine layers in a list" else nn.ModuleList(fine)
        self.density = nn.Linear(width, 1)
        self.color = nn.Sequential(nn.Linear(width + 3, width), nn.ReLU(), nn.Linear(width, 3), nn.Sigmoid())
        self.bug = bug

    def forward(self, points: Tensor, directions: Tensor, spacing: Tensor) -> Tensor:
        h = self.trunk(points)
        for layer in self.fine:
            h = F.relu(layer(h))
        sigma = F.softplus(self.density(h)).squeeze(-1)
        if self.bug == "density through numpy":
            sigma = torch.from_numpy(sigma.detach().numpy())
        seen_from = directions[:, None, :].expand_as(points)
        if self.bug == "direction overwritten":
            seen_from = torch.zeros_like(seen_from)
        rgb = self.color(torch.cat([h, seen_from], -1))
        alpha = 1 - torch.exp(-sigma * spacing)
        through = torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10], -1)
        through = through.cumprod(0 if self.bug == "transmittance down the rays" else 1)
        return ((alpha * through)[..., None] * rgb).sum(1)


@problem(
    "radiance-field",
    "rendering",
    bug("fine layers in a list", "unregistered-parameters", "6"),
    bug("density through numpy", "blocked-path", "density"),
    bug("direction overwritten", "idle-input", "input[1]", note=True),
    bug("transmittance down the rays", "mixed-samples", "cumprod"),
    bug("colors from 0 to 255", "targets-out-of-scale"),
    bug("color head not in the optimizer", "forgotten-parameters", "color.0.weight"),
    part="third set",
)
def radiance_field(bug: str) -> Case:
    model = RadianceField(bug)
    points = torch.rand(24, 10, 3) * 2 - 1
    directions = F.normalize(torch.randn(24, 3), dim=-1)
    pixels = torch.rand(24, 3)
    if bug == "colors from 0 to 255":
        pixels = pixels * 255
    left_out = "color" if bug == "color head not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model,
        (points, directions, torch.full((24, 10), 0.2)),
        pixels,
        nn.MSELoss(),
        torch.optim.Adam(trained, lr=5e-4),
    )


# Enlarging pictures with a pixel shuffle.


class SuperResolution(nn.Module):
    def __init__(self, bug: str, channels: int = 16) -> None:
        super().__init__()
        self.head = nn.Conv2d(1, channels, 3, padding=1)
        self.body = nn.Conv2d(channels, channels, 3, padding=1)
        self.refine = nn.Conv2d(channels, channels, 3, padding=1)
        self.tail = nn.Conv2d(channels, 4, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.bug = bug

    def forward(self, low: Tensor) -> Tensor:
        h = F.relu(self.head(low))
        h = h + F.relu(self.body(h))
        if self.bug == "channels before the batch":
            n, c, rows, columns = h.shape
            h = h.transpose(0, 1).reshape(n, c, rows, columns)
        refined = self.refine(h)
        if self.bug != "refinement not used":
            h = h + refined
        high = self.shuffle(self.tail(F.relu(h))) + F.interpolate(low, scale_factor=2.0)
        if self.bug == "rounded to gray levels":
            high = torch.round(high * 255) / 255
        return high


def psnr(out: Tensor, target: Tensor) -> Tensor:
    return -10 * torch.log10(F.mse_loss(out, target))


@problem(
    "super-resolution",
    "image restoration",
    bug("channels before the batch", "mixed-samples", "reshape"),
    bug("refinement not used", "discarded-results", "refine"),
    bug("rounded to gray levels", "step-function", "round"),
    bug("targets lost their channel", "mixed-targets", "(6, 1, 16, 16)"),
    bug("PSNR minimized", "negated-loss"),
    bug("tail twice in the optimizer", "doubled-parameters", "tail"),
    part="third set",
)
def super_resolution(bug: str) -> Case:
    net = SuperResolution(bug)
    high = torch.rand(6, 1, 16, 16)
    low = F.avg_pool2d(high, 2)
    if bug == "targets lost their channel":
        high = high.squeeze(1)
    if bug == "PSNR minimized":
        loss = psnr
    elif bug == "targets lost their channel":
        loss = lambda out, y: ((out - y) ** 2 + 1e-6).sqrt().mean()  # noqa: E731
    else:
        loss = lambda out, y: -psnr(out, y)  # noqa: E731
    if bug == "tail twice in the optimizer":
        first = torch.optim.Adam(net.parameters(), lr=1e-3)
        second = torch.optim.Adam(net.tail.parameters(), lr=1e-4)
        return Case(net, low, high, loss, [first, second])
    return Case(net, low, high, loss, torch.optim.Adam(net.parameters(), lr=1e-3))


# The next frame of a film, at every frame.


class FramePredictor(nn.Module):
    def __init__(self, bug: str, hidden: int = 24) -> None:
        super().__init__()
        self.encode = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.time = nn.GRU(8 * 4 * 4, hidden, batch_first=True)
        self.mix = nn.Conv1d(hidden, hidden, 3, padding=1)
        self.decode = nn.Linear(hidden, 64)
        self.bug = bug

    def forward(self, film: Tensor) -> Tensor:
        clips, frames = film.shape[:2]
        if self.bug == "brightness of the whole film removed":
            film = film - film.mean(1, keepdim=True)
        maps = F.relu(self.encode(film.flatten(0, 1)))
        if self.bug == "frames put before films":
            codes = maps.reshape(frames, clips, -1).transpose(0, 1)
        else:
            codes = maps.reshape(clips, frames, -1)
        if self.bug == "every frame begins a new memory":
            states = self.time(codes.reshape(clips * frames, 1, -1))[0].reshape(clips, frames, -1)
        else:
            states = self.time(codes)[0]
        padded = states.transpose(1, 2)
        if self.bug == "centered convolution over time":
            states = states + self.mix(padded).transpose(1, 2)
        elif self.bug != "every frame begins a new memory":
            states = states + self.mix(F.pad(padded, (2, 0)))[:, :, 1:-1].transpose(1, 2)
        return self.decode(states).view(clips, frames, 1, 8, 8)


@problem(
    "film",
    "video",
    bug("brightness of the whole film removed", "visible-answer"),
    bug("centered convolution over time", "visible-answer", "mix"),
    bug("frames put before films", "mixed-samples", "reshape"),
    bug("every frame begins a new memory", "unused-past or idle-modules"),
    bug("asked for the frame it sees", "shifted-targets", "own position"),
    bug("asked for the frame after the next", "shifted-targets", "2 positions"),
    bug("decoder not in the optimizer", "forgotten-parameters", "decode.weight"),
    part="third set",
)
def film(bug: str) -> Case:
    model = FramePredictor(bug)
    pictures = torch.rand(5, 15, 1, 8, 8)
    ahead = {"asked for the frame it sees": 0, "asked for the frame after the next": 2}.get(bug, 1)
    seen, wanted = pictures[:, :12].clone(), pictures[:, ahead : ahead + 12].clone()
    left_out = "decode" if bug == "decoder not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(model, seen, wanted, F.mse_loss, torch.optim.Adam(trained, lr=1e-3))


# Hidden patches filled in from the visible ones.


class MaskedAutoencoder(nn.Module):
    def __init__(self, bug: str, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        token = torch.randn(width) * 0.02
        self.mask_token = token.requires_grad_() if bug == "mask token is a tensor" else nn.Parameter(token)
        self.positions = nn.Parameter(torch.randn(16, width) * 0.2)
        layer = {"d_model": width, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**layer), 1, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**layer), 1, enable_nested_tensor=False
        )
        self.pixels = nn.Linear(width, 16)
        self.bug = bug

    def patches(self, images: Tensor) -> Tensor:
        n = images.shape[0]
        if self.bug == "patches cut across pictures":
            return images.reshape(4, 4, n, 4, 4).permute(2, 0, 3, 1, 4).reshape(n, 16, 16)
        return images.reshape(n, 4, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(n, 16, 16)

    def forward(self, images: Tensor, hidden: Tensor) -> Tensor:
        tokens = self.embed(self.patches(images))
        if self.bug != "hidden patches not replaced":
            tokens = torch.where(hidden[..., None], self.mask_token, tokens)
        if self.bug != "positions not added":
            tokens = tokens + self.positions
        encoded = self.encoder(tokens)
        decoded = self.decoder(tokens if self.bug == "decoder reads the tokens" else encoded)
        return self.pixels(decoded)


@problem(
    "masked-autoencoder",
    "masked pictures",
    bug("mask token is a tensor", "unregistered-parameters", "1"),
    bug("patches cut across pictures", "mixed-samples"),
    bug("hidden patches not replaced", "visible-answer or shifted-targets or idle-input"),
    bug("positions not added", "order-blind or blocked-path or forgotten-parameters or idle-modules"),
    bug("decoder reads the tokens", "discarded-results", "encoder"),
    part="third set",
)
def masked_autoencoder(bug: str) -> Case:
    model = MaskedAutoencoder(bug)
    images = torch.rand(8, 16, 16)
    hidden = torch.rand(8, 16) < 0.6
    wanted = images.reshape(8, 4, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(8, 16, 16)

    def loss(out: Tensor, wanted: Tensor) -> Tensor:
        return ((out - wanted) ** 2).mean(-1)[hidden].mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, {"images": images, "hidden": hidden}, wanted, loss, optimizer)


# Two views of a picture: one network predicts what its own slow copy says.


class OwnTeacher(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.student = nn.Sequential(
            nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()
        )
        self.project = nn.Linear(32, 16)
        self.predict = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.teacher = copy.deepcopy(nn.Sequential(self.student, self.project)).requires_grad_(False)
        self.bug = bug

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        features = self.student(one)
        if self.bug == "features detached":
            features = features.detach()
        said = self.predict(self.project(features))
        with torch.no_grad():
            wanted = self.teacher(one if self.bug == "teacher sees the same view" else two)
        axis = 0 if self.bug == "normalized down the batch" else -1
        agreement = (F.normalize(said, dim=axis) * F.normalize(wanted, dim=-1)).sum(-1)
        return (2 + 2 * agreement if self.bug == "agreement minimized" else 2 - 2 * agreement).mean()


@problem(
    "own-teacher",
    "self-distillation",
    bug("features detached", "blocked-path", "student"),
    bug("teacher sees the same view", "idle-input", "two", note=True),
    bug("normalized down the batch", "mixed-samples"),
    bug("agreement minimized", "negated-loss"),
    bug("optimizer got the teacher", "forgotten-parameters or foreign-optimizer"),
    bug("left in eval mode", "evaluation-mode", "student.1"),
    part="third set",
)
def own_teacher(bug: str) -> Case:
    model = OwnTeacher(bug)
    pictures = torch.randn(20, 30)
    views = {"one": pictures + 0.3 * torch.randn(20, 30), "two": pictures + 0.3 * torch.randn(20, 30)}
    if bug == "left in eval mode":
        model.eval()
    trained = [each for each in model.parameters() if each.requires_grad]
    if bug == "optimizer got the teacher":
        trained = [each.requires_grad_() for each in model.teacher.parameters()]
    return Case(model, views, optimizer=torch.optim.SGD(trained, lr=0.05, momentum=0.9))


# Two voices in one recording, separated by masks on the spectrogram.


class Separator(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.rnn = nn.GRU(33, 24, batch_first=True, bidirectional=True)
        self.mask = nn.Linear(48, 66)
        self.volume = nn.Parameter(torch.ones(2, 1))
        self.register_buffer("window", torch.hann_window(64))
        self.bug = bug

    def forward(self, mixture: Tensor) -> Tensor:
        spectrum = torch.stft(mixture, 64, 16, window=self.window, return_complex=True)
        loudness = spectrum.abs().log1p().transpose(1, 2)
        masks = self.mask(self.rnn(loudness)[0]).view(len(mixture), -1, 2, 33).permute(0, 2, 3, 1)
        masks = masks.softmax(0 if self.bug == "masks compete across recordings" else 1)
        if self.bug == "masks made binary":
            masks = (masks > 0.5).float()
        voices = torch.istft(
            (masks * spectrum[:, None]).flatten(0, 1), 64, 16, window=self.window, length=mixture.shape[-1]
        )
        return voices.view(len(mixture), 2, -1) * self.volume


def signal_to_noise(out: Tensor, wanted: Tensor) -> Tensor:
    return 10 * torch.log10(wanted.pow(2).sum(-1) / ((out - wanted).pow(2).sum(-1) + 1e-8) + 1e-8).mean()


@problem(
    "voices",
    "source separation",
    bug("masks compete across recordings", "mixed-samples", "softmax"),
    bug("masks made binary", "step-function or blocked-path", "mask"),
    bug("signal-to-noise ratio minimized", "negated-loss"),
    bug("recording is silent", "idle-input", "input"),
    bug("recurrent layer not in the optimizer", "forgotten-parameters", "rnn.weight_ih_l0"),
    part="third set",
)
def voices(bug: str) -> Case:
    model = Separator(bug)
    sources = torch.randn(4, 2, 320)
    mixture = sources.sum(1)
    if bug == "recording is silent":
        mixture = torch.zeros_like(mixture)
    sign = 1 if bug == "signal-to-noise ratio minimized" else -1
    left_out = "rnn" if bug == "recurrent layer not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model,
        mixture,
        sources,
        lambda out, wanted: sign * signal_to_noise(out, wanted),
        torch.optim.Adam(trained, lr=1e-3),
    )
