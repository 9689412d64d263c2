"""A variational autoencoder whose model returns several tensors, with a loss function of its own."""

import torch
import torch.nn.functional as F
from torch import nn, optim


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 40)
        self.fc21, self.fc22 = nn.Linear(40, 8), nn.Linear(40, 8)
        self.fc3, self.fc4 = nn.Linear(8, 40), nn.Linear(40, 64)

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


if __name__ == "__main__":
    torch.manual_seed(3)
    prototypes = torch.rand(5, 64).round()
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    train_loss = 0.0
    for step in range(15):
        data = (prototypes[torch.randint(5, (32,))] * 0.9 + 0.05).view(32, 1, 8, 8)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        print(step, loss.item() / len(data))
    print("weights", sum(each.double().sum().item() for each in model.parameters()), train_loss)
