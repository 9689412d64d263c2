"""Q-learning in the shape of PyTorch's DQN tutorial: a target network, a replay memory, clipping by value."""

import random
from collections import deque

import torch
from torch import nn, optim

random.seed(0)
torch.manual_seed(0)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
        )

    def forward(self, x):
        return self.layers(x)


policy_net, target_net = DQN(), DQN()
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory = deque(maxlen=500)


def select_action(state, epsilon):
    if random.random() > epsilon:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]])


def optimize_model():
    if len(memory) < 32:
        return None
    states, actions, next_states, rewards = map(torch.cat, zip(*random.sample(memory, 32), strict=True))
    values = policy_net(states).gather(1, actions)
    with torch.no_grad():
        next_values = target_net(next_states).max(1).values
    expected = next_values * 0.9 + rewards
    loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss.item()


state = torch.randn(1, 4)
for step in range(60):
    action = select_action(state, epsilon=0.3)
    next_state = 0.9 * state + 0.3 * torch.randn(1, 4)
    reward = (state.sum(1) > 0).float() * (action.view(-1) == 1).float()
    memory.append((state, action, next_state, reward))
    state = next_state
    loss = optimize_model()
    target = target_net.state_dict()
    for key, value in policy_net.state_dict().items():
        target[key] = value * 0.005 + target[key] * 0.995
    target_net.load_state_dict(target)
    if loss is not None:
        print(step, loss)
print("weights", sum(each.double().sum().item() for each in policy_net.parameters()), random.random())
