"""Robust training with Lightning: an ordinary module with manual optimization.

    python examples/lightning_wrm.py [--devices N] [--steps N]

The objective is made from the network; Lightning wraps the module around it, and `manual_backward`
averages the gradients over the processes. Needs the extra `lightning`.
"""

import argparse

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import neada


class Robust(lightning.LightningModule):
    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = network
        self.robust = neada.robust.WRM(network, cross_entropy, gamma=3.0)

    def training_step(self, batch: list[torch.Tensor]) -> None:
        self.robust.outer_steps = self.global_step  # goes on from Lightning's checkpoints
        optimizer = self.optimizers()
        loss = self.robust.loss(self.robust.perturb(*batch))
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.5)
        optimizer.step()
        self.lr_schedulers().step()

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="processes")
    parser.add_argument("--steps", type=int, default=100, help="steps of the model")
    options = parser.parse_args()
    digits = neada.data.load("digits")
    dataset = TensorDataset(digits.inputs_train, digits.targets_train)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
    network = neada.models.make("mlp", digits.input_shape, 10, seed=0, hidden=(128,))
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(devices=options.devices, max_steps=options.steps, **off)
    trainer.fit(Robust(network), loader)
    test = [(digits.inputs_test, digits.targets_test)]
    found = neada.attacks.robust_accuracy(network, test, "pgd", 0.1, bounds=(0.0, 1.0))
    trainer.print(f"clean {found.clean:.3f}, under PGD {found.attacked[0.1]:.3f}")


if __name__ == "__main__":
    main()
