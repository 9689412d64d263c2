"""A LightningModule whose training_step calls its network, trained by a Trainer."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def training_step(self, batch, index):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        print(index, loss.item())
        return loss

    def validation_step(self, batch, index):
        inputs, labels = batch
        print("val", nn.functional.cross_entropy(self.net(inputs), labels).item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


lightning.seed_everything(0)
labels = torch.randint(4, (128,))
inputs = torch.randn(4, 16)[labels] + 0.3 * torch.randn(128, 16)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, DataLoader(TensorDataset(inputs, labels), batch_size=64))
print("weights", sum(each.double().sum().item() for each in model.parameters()))
