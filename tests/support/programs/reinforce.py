"""Policy gradients: the model is called once per action, and the loss is a sum over an episode."""

import torch
from torch import nn, optim
from torch.distributions import Categorical

torch.manual_seed(543)
policy = nn.Sequential(nn.Linear(4, 32), nn.Dropout(p=0.1), nn.ReLU(), nn.Linear(32, 2), nn.Softmax(dim=-1))
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(6):
    state, log_probs, rewards = torch.randn(4), [], []
    for _ in range(10):
        distribution = Categorical(policy(state.unsqueeze(0)))
        action = distribution.sample()
        log_probs.append(distribution.log_prob(action))
        rewards.append(float((action.item() == 1) == (state.sum().item() > 0)))
        state = torch.randn(4)
    returns, total = [], 0.0
    for reward in rewards[::-1]:
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    optimizer.zero_grad()
    loss = torch.cat([-log_prob * value for log_prob, value in zip(log_probs, returns, strict=True)]).sum()
    loss.backward()
    optimizer.step()
    print(episode, sum(rewards), loss.item())
print("weights", sum(each.double().sum().item() for each in policy.parameters()))
