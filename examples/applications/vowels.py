"""Speech: classify five vowels from the waveform with a stack of thirty dilated tanh convolutions.

The waves are synthetic: a train of pulses at a random pitch, passed through two resonances at about the
frequencies that Peterson and Barney (1952) measured for men saying these vowels, with small
variations per speaker and noise.

    python -m examples.applications.vowels [--quick]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from examples.applications.application import Application, main

SAMPLING_RATE = 8000  # Hz
SAMPLES = 256  # 32 ms per sound
FORMANTS = ((270, 2290), (530, 1840), (730, 1090), (570, 840), (300, 870))  # Hz: i, e, a, o, u
BANDWIDTH = 90.0  # Hz
CHANNELS = 16


def vowels(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return waves of unit variance, (count, 1, SAMPLES), and the index of the vowel of each."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(FORMANTS), (count,), generator=generator)
    voice = 1 + 0.08 * torch.randn(count, 1, generator=generator)
    time = torch.arange(SAMPLES) / SAMPLING_RATE
    pitch = 90 + 60 * torch.rand(count, 1, generator=generator)
    pulses = ((time * pitch) % 1 < pitch / SAMPLING_RATE).float()
    ringing = sum(_resonance(torch.tensor(FORMANTS)[which, k, None] * voice, time) for k in (0, 1))
    spectrum = torch.fft.rfft(pulses, 2 * SAMPLES) * torch.fft.rfft(ringing, 2 * SAMPLES)
    waves = torch.fft.irfft(spectrum)[:, :SAMPLES]
    waves = waves / waves.std(1, keepdim=True) + 0.1 * torch.randn(count, SAMPLES, generator=generator)
    return waves[:, None], which


def _resonance(frequency: Tensor, time: Tensor) -> Tensor:
    """Return the response of one formant to a pulse: a decaying sine."""
    return torch.exp(-math.pi * BANDWIDTH * time) * torch.sin(2 * math.pi * frequency * time)


def build(layers: int = 30) -> leadline.Case:
    torch.manual_seed(0)
    stack: list[nn.Module] = [nn.Conv1d(1, CHANNELS, 16, stride=8), nn.Tanh()]
    for layer in range(layers):
        dilation = 2 ** (layer % 3)
        stack += [nn.Conv1d(CHANNELS, CHANNELS, 3, padding=dilation, dilation=dilation), nn.Tanh()]
    model = nn.Sequential(*stack, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(CHANNELS, len(FORMANTS)))
    data = [vowels(32, seed) for seed in range(200)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return leadline.Case(model, *data[0], F.cross_entropy, optimizer, data)


def score(model: nn.Module) -> float:
    waves, which = vowels(500, seed=10_000)
    return float((model(waves).argmax(1) == which).float().mean())


APPLICATION = Application(build=build, score=score, unit="accuracy on new voices", fix="critical-init")

if __name__ == "__main__":
    main(APPLICATION)
