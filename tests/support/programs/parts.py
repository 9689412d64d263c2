"""Parts called one by one: two encoders of a contrastive model, a temperature of its own, and a frozen feature net."""

import torch
from torch import nn

torch.manual_seed(0)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16))
        self.text = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 16))
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def loss(self, images, texts):
        a = nn.functional.normalize(self.image(images), dim=-1)
        b = nn.functional.normalize(self.text(texts), dim=-1)
        logits = self.logit_scale.exp() * a @ b.t()
        labels = torch.arange(len(logits))
        return (
            nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.t(), labels)
        ) / 2


features = nn.Linear(20, 24).requires_grad_(False)
model = TwoTowers()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
mixing = torch.randn(20, 12)
for step in range(14):
    raw = torch.randn(16, 20)
    loss = model.loss(features(raw), raw @ mixing / 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print("weights", sum(each.double().sum().item() for each in model.parameters()))
