"""Robust training on several processes with `DistributedDataParallel`.

    torchrun --nproc-per-node 2 examples/ddp.py [--steps N]

Every process perturbs its own part of the batch. Only the gradients of the model are communicated,
once per step and by the wrapper, and a number that all processes stop by.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import neada


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="steps of the model")
    arguments = parser.parse_args()
    dist.init_process_group()

    digits = neada.data.load("digits")
    dataset = TensorDataset(digits.inputs_train, digits.targets_train)
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)
    model = neada.models.make("small-cnn", digits.input_shape, digits.num_classes, seed=0)
    model = DistributedDataParallel(model)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    robust = neada.robust.WRM(model, cross_entropy, gamma=3.0)

    while robust.outer_steps < arguments.steps:
        sampler.set_epoch(robust.outer_steps)
        for inputs, targets in loader:
            robust.step(x_optimizer, inputs, targets)
            if robust.outer_steps == arguments.steps:
                break

    test = [(digits.inputs_test, digits.targets_test)]
    found = neada.attacks.robust_accuracy(model.module, test, "pgd", 0.1, bounds=(0.0, 1.0))
    if dist.get_rank() == 0:
        print(f"clean {found.clean:.3f}, under PGD {found.attacked[0.1]:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
