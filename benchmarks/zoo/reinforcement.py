"""Policies and critics of stable-baselines3, on spaces of the usual benchmarks; a batch of random observations."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.architecture import Exhibit, energy, labels, towards_noise
from leadline import Case

BATCH, OBSERVED, ACTIONS, CHOICES = 16, 17, 6, 4


def exhibits() -> Iterator[Exhibit]:
    for name, build in MODELS.items():
        yield Exhibit(name=f"stable-baselines3/{name}", origin="stable-baselines3", build=build)


def spaces(*, pictures: bool, discrete: bool) -> tuple[Any, Any]:
    gym = importlib.import_module("gymnasium").spaces
    seen = gym.Box(0, 255, (4, 64, 64), "uint8") if pictures else gym.Box(-10, 10, (OBSERVED,))
    return seen, gym.Discrete(CHOICES) if discrete else gym.Box(-1, 1, (ACTIONS,))


def observations(*, pictures: bool) -> torch.Tensor:
    return torch.randint(0, 256, (BATCH, 4, 64, 64)).float() if pictures else torch.randn(BATCH, OBSERVED)


class Evaluated(nn.Module):
    """An actor-critic policy as PPO asks it: value, log-probability and entropy of taken actions."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, seen: torch.Tensor, taken: torch.Tensor) -> Any:
        return self.policy.evaluate_actions(seen, taken)


def actor_critic(kind: str, *, pictures: bool, discrete: bool) -> Case:
    policies = importlib.import_module("stable_baselines3.common.policies")
    policy = getattr(policies, kind)(
        *spaces(pictures=pictures, discrete=discrete), lr_schedule=lambda _: 3e-4
    )
    taken = labels(CHOICES, BATCH) if discrete else torch.rand(BATCH, ACTIONS) * 2 - 1
    return Case(Evaluated(policy), (observations(pictures=pictures), taken), loss=policy_loss)


def policy_loss(output: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """PPO's at its first step: policy gradient with unit advantages of both signs, value error, entropy bonus."""
    values, chance, entropy = output
    advantage = torch.linspace(-1, 1, len(chance))
    return (
        -(advantage * chance).mean()
        + 0.5 * (values.flatten() - advantage).square().mean()
        - 0.01 * entropy.mean()
    )


def q_network(*, pictures: bool) -> Case:
    policies = importlib.import_module("stable_baselines3.dqn.policies")
    kind = policies.CnnPolicy if pictures else policies.MlpPolicy
    network = kind(*spaces(pictures=pictures, discrete=True), lr_schedule=lambda _: 1e-4).q_net
    return Case(network, observations(pictures=pictures), torch.randn(BATCH, CHOICES), towards_noise)


def critic(module: str) -> Case:
    policies = importlib.import_module(f"stable_baselines3.{module}.policies")
    policy = policies.MlpPolicy(*spaces(pictures=False, discrete=False), lr_schedule=lambda _: 3e-4)
    given = observations(pictures=False), torch.rand(BATCH, ACTIONS) * 2 - 1
    return Case(policy.critic, given, torch.randn(BATCH, 1), towards_noise)


def actor(module: str) -> Case:
    policies = importlib.import_module(f"stable_baselines3.{module}.policies")
    policy = policies.MlpPolicy(*spaces(pictures=False, discrete=False), lr_schedule=lambda _: 3e-4)
    return Case(policy.actor, observations(pictures=False), loss=energy)


MODELS = {
    "PPO, MLP, discrete": partial(actor_critic, "ActorCriticPolicy", pictures=False, discrete=True),
    "PPO, MLP, continuous": partial(actor_critic, "ActorCriticPolicy", pictures=False, discrete=False),
    "PPO, CNN": partial(actor_critic, "ActorCriticCnnPolicy", pictures=True, discrete=True),
    "DQN, MLP": partial(q_network, pictures=False),
    "DQN, CNN": partial(q_network, pictures=True),
    "SAC, critic": partial(critic, "sac"),
    "SAC, actor": partial(actor, "sac"),
    "TD3, critic": partial(critic, "td3"),
    "TD3, actor": partial(actor, "td3"),
}
