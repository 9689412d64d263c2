"""Policies and critics of stable-baselines3 on random observations with the shapes of common benchmarks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.architecture import Architecture, energy, labels, noise_target_loss
from leadline import Case

BATCH, OBSERVED, ACTIONS, CHOICES = 16, 17, 6, 4


def architectures() -> Iterator[Architecture]:
    for name, build in MODELS.items():
        yield Architecture(name=f"stable-baselines3/{name}", origin="stable-baselines3", build=build)


def spaces(*, images: bool, discrete: bool) -> tuple[Any, Any]:
    gym = importlib.import_module("gymnasium").spaces
    observed = gym.Box(0, 255, (4, 64, 64), "uint8") if images else gym.Box(-10, 10, (OBSERVED,))
    return observed, gym.Discrete(CHOICES) if discrete else gym.Box(-1, 1, (ACTIONS,))


def observations(*, images: bool) -> torch.Tensor:
    return torch.randint(0, 256, (BATCH, 4, 64, 64)).float() if images else torch.randn(BATCH, OBSERVED)


class PolicyEvaluation(nn.Module):
    """An actor-critic policy as PPO calls it: value, log-probability and entropy of given actions."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> Any:
        return self.policy.evaluate_actions(observations, actions)


def actor_critic(kind: str, *, images: bool, discrete: bool) -> Case:
    policies = importlib.import_module("stable_baselines3.common.policies")
    policy = getattr(policies, kind)(*spaces(images=images, discrete=discrete), lr_schedule=lambda _: 3e-4)
    actions = labels(CHOICES, BATCH) if discrete else torch.rand(BATCH, ACTIONS) * 2 - 1
    return Case(PolicyEvaluation(policy), (observations(images=images), actions), loss=policy_loss)


def policy_loss(output: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return PPO's loss at its first step: policy gradient with advantages from -1 to 1, value error, entropy."""
    values, log_probability, entropy = output
    advantage = torch.linspace(-1, 1, len(log_probability))
    return (
        -(advantage * log_probability).mean()
        + 0.5 * (values.flatten() - advantage).square().mean()
        - 0.01 * entropy.mean()
    )


def q_network(*, images: bool) -> Case:
    policies = importlib.import_module("stable_baselines3.dqn.policies")
    kind = policies.CnnPolicy if images else policies.MlpPolicy
    network = kind(*spaces(images=images, discrete=True), lr_schedule=lambda _: 1e-4).q_net
    return Case(network, observations(images=images), torch.randn(BATCH, CHOICES), noise_target_loss)


def critic(module: str) -> Case:
    policies = importlib.import_module(f"stable_baselines3.{module}.policies")
    policy = policies.MlpPolicy(*spaces(images=False, discrete=False), lr_schedule=lambda _: 3e-4)
    inputs = observations(images=False), torch.rand(BATCH, ACTIONS) * 2 - 1
    return Case(policy.critic, inputs, torch.randn(BATCH, 1), noise_target_loss)


def actor(module: str) -> Case:
    policies = importlib.import_module(f"stable_baselines3.{module}.policies")
    policy = policies.MlpPolicy(*spaces(images=False, discrete=False), lr_schedule=lambda _: 3e-4)
    return Case(policy.actor, observations(images=False), loss=energy)


MODELS = {
    "PPO, MLP, discrete": partial(actor_critic, "ActorCriticPolicy", images=False, discrete=True),
    "PPO, MLP, continuous": partial(actor_critic, "ActorCriticPolicy", images=False, discrete=False),
    "PPO, CNN": partial(actor_critic, "ActorCriticCnnPolicy", images=True, discrete=True),
    "DQN, MLP": partial(q_network, images=False),
    "DQN, CNN": partial(q_network, images=True),
    "SAC, critic": partial(critic, "sac"),
    "SAC, actor": partial(actor, "sac"),
    "TD3, critic": partial(critic, "td3"),
    "TD3, actor": partial(actor, "td3"),
}
