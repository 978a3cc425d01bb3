"""Robust training of a network whose parameters are spread over several processes (FSDP2).

    torchrun --nproc-per-node 2 examples/fsdp.py [--steps N]

The parameters are gathered with every evaluation, so all processes evaluate as often as the one
whose samples need the most inner steps.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import neada


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="steps of the model")
    arguments = parser.parse_args()
    dist.init_process_group()
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    digits = neada.data.load("digits")
    dataset = TensorDataset(digits.inputs_train, digits.targets_train)
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.ELU(), nn.Linear(128, 10)]
    model = nn.Sequential(*layers).to(device)
    for part in (model[1], model[3], model):
        fully_shard(part, mesh=mesh)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    robust = neada.robust.AdversarialTraining(model, cross_entropy, eps=0.1, bounds=(0.0, 1.0))

    first = last = 0.0
    while robust.outer_steps < arguments.steps:
        sampler.set_epoch(robust.outer_steps)
        for inputs, targets in loader:
            info = robust.step(x_optimizer, inputs.to(device), targets.to(device))
            first, last = first or info.loss, info.loss
            if robust.outer_steps == arguments.steps:
                break
    if dist.get_rank() == 0:
        print(f"the worst-case loss of a batch fell from {first:.3f} to {last:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
