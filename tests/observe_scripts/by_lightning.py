"""As kinds.py, by Lightning's Trainer on two ranks, whoever starts them: its own launcher where nobody has."""

import sys
from pathlib import Path

import lightning
import torch
from delays import Delays
from ending import leave
from kinds import Net, loader, loss_of


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, _):
        return loss_of(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


plan, truth = Path(sys.argv[-2]), Path(sys.argv[-1])
truth.mkdir(exist_ok=True)
torch.set_num_threads(1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, default_root_dir=truth.parent, use_distributed_sampler=False,
)  # fmt: skip
delay = Delays(plan, trainer.global_rank)
trainer.fit(Module(), loader(delay))
delay.write(truth)
leave()
