"""REINFORCE in a corridor: walk to the right end, but fetch the key at the left end first."""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical

LENGTH, HORIZON, GAMMA, WALKERS = 6, 22, 0.95, 32


def returns(rewards, bug):
    """From (time, walkers) rewards to what each action is credited with."""
    steps = torch.arange(len(rewards)).float()[:, None]
    if bug == "whole_return":
        values = (rewards * GAMMA**steps).sum(0, keepdim=True).expand_as(rewards)
    elif bug == "discount_not_summed":
        values = rewards * GAMMA**steps
    else:
        values, running = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
        for t in reversed(range(len(rewards))):
            running = rewards[t] + GAMMA * running
            values[t] = running
    return (values - values.mean()) / (values.std() + 1e-6)


def play(policy, greedy=False):
    place, key = torch.full((WALKERS,), 2), torch.zeros(WALKERS, dtype=torch.long)
    logs, rewards, entropies = [], [], []
    for _ in range(HORIZON):
        state = nn.functional.one_hot(place + LENGTH * key, 2 * LENGTH).float()
        choice = Categorical(logits=policy(state))
        action = choice.probs.argmax(1) if greedy else choice.sample()
        logs.append(choice.log_prob(action))
        entropies.append(choice.entropy())
        place = (place + 2 * action - 1).clamp(0, LENGTH - 1)
        fetched = (place == 0) & (key == 0)
        won = (place == LENGTH - 1) & (key == 1)
        rewards.append(0.3 * fetched.float() + won.float() - 0.01)
        key = torch.where(fetched, 1, key)
        key, place = torch.where(won, 0, key), torch.where(won, 2, place)
    return torch.stack(logs), torch.stack(rewards), torch.stack(entropies)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    policy = nn.Sequential(nn.Linear(2 * LENGTH, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    for update in range(80):
        logs, rewards, entropies = play(policy)
        gains = returns(rewards, args.bug)
        if args.bug == "mean_log_prob":
            loss = -(logs.mean(0) * gains.mean(0)).mean()
        else:
            loss = -(logs * gains).mean()
        bonus = 0.02 * entropies.mean()
        loss = loss + bonus if args.bug == "entropy_added" else loss - bonus
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0:
            print(f"update {update} reward {rewards.sum(0).mean().item():.3f}")
    with torch.no_grad():
        score = play(policy, greedy=True)[1].sum(0).mean().item()
    print(f"metric {score:.4f}")


if __name__ == "__main__":
    main()
