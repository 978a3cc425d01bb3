"""Robust training with Accelerate: an ordinary loop with one more line.

    torchrun --nproc-per-node 2 examples/accelerate_wrm.py [--steps N]

The objective is made from the prepared model, whose wrapper averages the gradients over the
processes. Needs the extra `accelerate`.
"""

import argparse

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import neada


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="steps of the model")
    arguments = parser.parse_args()
    # Where there is no GPU, Accelerate has to be told: each process would train on its own.
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())

    digits = neada.data.load("digits")
    dataset = TensorDataset(digits.inputs_train, digits.targets_train)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True, generator=order)
    model = neada.models.make("mlp", digits.input_shape, digits.num_classes, seed=0, hidden=(128,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    robust = neada.robust.WRM(model, cross_entropy, gamma=3.0)

    while robust.outer_steps < arguments.steps:
        for inputs, targets in loader:
            worst = robust.perturb(inputs, targets)  # the line more
            loss = robust.loss(worst)  # instead of cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            if robust.outer_steps == arguments.steps:
                break

    network = accelerator.unwrap_model(model).cpu()
    test = [(digits.inputs_test, digits.targets_test)]
    found = neada.attacks.robust_accuracy(network, test, "pgd", 0.1, bounds=(0.0, 1.0))
    accelerator.print(f"clean {found.clean:.3f}, under PGD {found.attacked[0.1]:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
