"""
Adversarial training of a ResNet on CIFAR-10-sized images
=========================================================

For people with a GPU, a residual network and 32x32 color images, who train at eps 8/255
with random crops and flips, and who want the perturbations of the last epoch as a start
for the next one.

What was run: this page, on a CPU, with random images of that shape, two batches, twice.
The flags for a GPU, bf16, channels-last and ``torch.compile`` are here to be used, and
have not been run; neither has a training on CIFAR-10.
"""

import argparse
from contextlib import nullcontext

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, pad

import neada
from neada.plots import label_axes

parser = argparse.ArgumentParser(description="a ResNet trained at eps 8/255")
parser.add_argument("--device", default="cpu", help="cuda, for example")
parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
parser.add_argument("--channels-last", action="store_true", help="layout of images")
parser.add_argument("--compile", action="store_true", help="torch.compile the ResNet")
flags = parser.parse_args()
torch.manual_seed(0)

# %%
# The network
# -----------
#
# A small ResNet: three stages with one block each. ``neada.models.Normalized`` puts the
# normalization inside of the model, so that images, ``eps`` and ``bounds`` are in pixel
# values from 0 to 1.


class Block(nn.Module):
    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(num_out), nn.ReLU()),
            nn.Conv2d(num_out, num_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        self.shortcut = nn.Conv2d(num_in, num_out, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


resnet = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
)
if flags.channels_last:
    resnet = resnet.to(memory_format=torch.channels_last)
if flags.compile:
    resnet = torch.compile(resnet)
normalized = neada.models.Normalized(
    resnet, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
)

# %%
# Crops and flips, and perturbations that persist
# -----------------------------------------------
#
# A perturbation that was found for one crop does not fit the next one. Therefore crop
# and flip are part of the model here. The adversary moves the pixels of the image as
# it is in the data set, its gradient goes through the crop, and the perturbations that
# are kept can be used again with any other crop. Pixels that a crop leaves out keep
# their perturbation.
#
# ``draw`` is called once per batch, so that the adversary and the model see the same
# crops. Samples must then not leave the batch one by one: ``per_sample=False``.


class Augmented(nn.Module):
    """A model that sees crops of its padded inputs, half of them flipped."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.places: tuple[Tensor, Tensor] | None = None

    def draw(self, num_images: int, device: str) -> None:
        """Choose the crop of each image in the next batch."""
        steps = torch.arange(32, device=device)
        rows, columns = (
            torch.randint(9, (num_images, 1), device=device) + steps for _ in range(2)
        )
        flipped = torch.rand(num_images, 1, device=device) < 0.5
        self.places = rows, torch.where(flipped, columns.flip(1), columns)

    def crop(self, images: Tensor) -> Tensor:
        if self.places is None:
            return images
        rows, columns = self.places
        samples = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
        channels = torch.arange(3, device=images.device).view(1, -1, 1, 1)
        around = pad(images, (4, 4, 4, 4))
        return around[samples, channels, rows[:, None, :, None], columns[:, None, None]]

    def forward(self, images: Tensor) -> Tensor:
        return self.model(self.crop(images))


model = Augmented(normalized).to(flags.device)

# %%
# The loop
# --------
#
# With real data a loader yields the place of each image in the data set besides image
# and label; ``places = None`` before an evaluation switches crops off.

EPS = 8 / 255
images = interpolate(torch.rand(64, 3, 8, 8), size=32, mode="bilinear")
labels = torch.randint(10, (64,))
batches = torch.arange(64).split(32)

adversary = neada.robust.Adversary(
    stopping=neada.stopping.FixedSteps(3), per_sample=False, start="kept"
)
robust = neada.robust.AdversarialTraining(
    model, cross_entropy, eps=EPS, bounds=(0.0, 1.0), adversary=adversary
)
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)

for epoch in range(2):
    for ids in batches:
        inputs, targets = images[ids].to(flags.device), labels[ids].to(flags.device)
        if flags.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        model.draw(len(inputs), flags.device)
        on_device = torch.autocast(flags.device, torch.bfloat16)
        with on_device if flags.bf16 else nullcontext():
            worst = robust.perturb(inputs, targets, ids)
            with torch.no_grad():
                clean_loss = cross_entropy(model(inputs), targets).item()
            loss = robust.loss(worst)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        largest = (worst.inputs - inputs).abs().max().item() * 255
        print(
            f"epoch {epoch}: loss {clean_loss:.3f}, perturbed {loss.item():.3f}, "
            f"largest change {largest:.1f}/255, {worst.inner_steps} inner steps"
        )

# %%
# One image, its perturbation, and what the network saw of both
# -------------------------------------------------------------

which = int(batches[-1][0])
kept = (worst.inputs - worst.clean)[0].cpu().float()
with torch.no_grad():
    seen = model.crop(worst.inputs)[0].cpu().float()

figure, panels = plt.subplots(1, 3, figsize=(8.6, 3.3), layout="constrained")
panels[0].imshow(images[which].permute(1, 2, 0).numpy())
change = panels[1].imshow(255 * kept.mean(0).numpy(), cmap="RdBu", vmin=-8, vmax=8)
panels[2].imshow(seen.permute(1, 2, 0).clamp(0, 1).numpy())
titles = (
    "An image of the data set",
    "Its perturbation",
    "What the network saw",
)
for panel, title in zip(panels, titles, strict=True):
    label_axes(panel, title, "column (pixels)", "row (pixels)")
figure.colorbar(change, ax=panels[1], shrink=0.7, label="mean over colors (1/255)")
plt.show()
