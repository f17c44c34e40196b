"""An autoencoder, trained with Lightning."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def _loss(self, batch: Any) -> torch.Tensor:
        (rows,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(rows)), rows)


def main() -> None:
    pl.seed_everything(7)
    rows = torch.randn(2_000, 3) @ torch.randn(3, 64)
    training = DataLoader(TensorDataset(rows[200:]), batch_size=16, shuffle=True)
    validation = DataLoader(TensorDataset(rows[:200]), batch_size=16)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=12,
        callbacks=[
            ModelCheckpoint(dirpath="best", filename="{epoch}", monitor="val_loss"),
            EarlyStopping(monitor="val_loss", patience=3),
        ],
    )
    trainer.fit(LitAutoEncoder(), training, validation)
    trainer.save_checkpoint("final.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
