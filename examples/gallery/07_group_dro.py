"""
Group DRO where color gives the answer away
===========================================

For people whose classifier does well on average and badly on a group of their data that
was rare in training. Digits are red or green here, and in training the color nearly
always agrees with the class. What counts is the accuracy of the worst group.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import neada
from neada.plots import label_axes, numbered_style, shared_legend

RESULTS = Path(sys.argv[0]).parent / "results" / "07_group_dro.json"
AGREES = 0.95  # the share of training images whose color agrees with the class
GROUPS = ("0-4, red", "0-4, green", "5-9, red", "5-9, green")

# %%
# The data
# --------
#
# The class is whether the digit is at least 5. An image has a red and a green channel,
# one of which is blank. Class and color make four groups; two of them, digits below 5
# in green and others in red, have about 35 training images each, the two others about
# 680. Every test image is taken twice, once in each color.


def colored(images: Tensor, colors: Tensor) -> Tensor:
    both = torch.zeros(len(images), 2, *images.shape[2:])
    both[torch.arange(len(images)), colors] = images[:, 0]
    return both


digits = neada.data.load("digits")
classes = (digits.targets_train >= 5).long()
classes_test = (digits.targets_test >= 5).long()


def training_data(seed: int) -> TensorDataset:
    """Images, classes and groups."""
    agrees = torch.rand(len(classes), generator=torch.Generator().manual_seed(seed))
    colors = torch.where(agrees < AGREES, classes, 1 - classes)
    return TensorDataset(
        colored(digits.inputs_train, colors), classes, 2 * classes + colors
    )


# %%
# Three ways to train
# -------------------
#
# *Plain* training draws batches as they come. *Balanced* sampling draws every group
# equally often, whoever has trouble. *Group DRO* draws batches as they come and gives
# the groups weights: on every batch the worst mixture of the groups for the present
# model, less ``strength`` times its divergence from equal shares. With a large strength
# the groups count equally, with a small one the worst counts almost alone. With the
# default divergence the worst mixture has a formula, so that there is no learning rate
# for the weights. Without the divergence (``regularizer=None``) they move by one step
# of exponentiated gradient per batch instead, whose rate adapts.


def group_accuracies(model: torch.nn.Module) -> list[float]:
    """One for each group."""
    accuracies = []
    for target in (0, 1):
        images = digits.inputs_test[classes_test == target]
        for color in (0, 1):
            with torch.no_grad():
                outputs = model(colored(images, torch.full((len(images),), color)))
            accuracies.append((outputs.argmax(1) == target).double().mean().item())
    return accuracies


def train(method: str | float, seed: int, epochs: int = 10) -> list[list[float]]:
    """The groups' accuracies after every second pass; a number is a strength."""
    torch.manual_seed(seed)
    dataset = training_data(seed)
    groups = dataset.tensors[2]
    sampler = None
    if method == "balanced":
        shares = torch.bincount(groups) / len(groups)
        sampler = WeightedRandomSampler((1 / shares[groups]).tolist(), len(groups))
    loader = DataLoader(
        dataset, 64, shuffle=sampler is None, sampler=sampler, drop_last=True
    )
    model = neada.models.make("small-cnn", (2, 8, 8), 2, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if method == "DRO, no regularizer":
        robust = neada.robust.GroupDRO(model, cross_entropy, 4, regularizer=None)
    elif isinstance(method, float):
        robust = neada.robust.GroupDRO(model, cross_entropy, 4, strength=method)
    else:
        robust = None
    measured = []
    for epoch in range(1, epochs + 1):
        model.train()
        for inputs, targets, batch_groups in loader:
            if robust is None:
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            else:
                robust.step(optimizer, inputs, targets, batch_groups)
        if epoch % 2 == 0:
            measured.append(group_accuracies(model.eval()))
    return measured


# %%
# One run of each
# ---------------
#
# Ten passes over the data, the same network and optimizer. Training in the plain way
# goes by the color. Balanced sampling and group DRO are close to each other, and a
# single run does not say which is better: here balanced sampling is.

NAMES: dict[str | float, str] = {
    "plain": "plain",
    "balanced": "balanced sampling",
    0.1: "group DRO, 0.1",
}
once = {}
print(f"{'accuracy (%)':18}" + "".join(f"{group:>12}" for group in GROUPS))
for method, name in NAMES.items():
    once[name] = 100 * np.array(train(method, seed=0)[-1])
    print(f"{name:18}" + "".join(f"{value:12.1f}" for value in once[name]))

# %%
# Five seeds, four strengths
# --------------------------
#
# ``python examples/gallery/07_group_dro.py --full`` repeats this, for seeds 1 to 5 with
# thirty passes. The network, its learning rate and the 0.1 above were settled in trials
# with three other seeds, on the same test images; strengths of 0.03 and 0.1 did best
# there. All of them are shown.
#
# After ten passes the worst group has 45 % with plain training, 70 % with balanced
# sampling, and between 72 % and 77 % with group DRO. Seeds differ by more than that,
# but they can be compared one by one, since the colors and the first network are the
# same. With a strength of 0.1 group DRO wins for four seeds of five, by 6 points on
# average after ten passes and 4 after thirty; without the regularizer it is never
# behind; with the default of 1 it is no better than balanced sampling after thirty
# passes. Five seeds are few, and choosing the number of passes on held-out images may
# change the order.

STRENGTHS = (0.03, 0.1, 0.3, 1.0)
if "--full" in sys.argv:
    new: dict[str, Any] = {
        str(method): [train(method, seed, epochs=30) for seed in range(1, 6)]
        for method in ("plain", "balanced", "DRO, no regularizer", *STRENGTHS)
    }
    RESULTS.write_text(json.dumps(new) + "\n", encoding="utf-8")
# Arrays of seeds, measurements and groups, in percent
found = {
    name: 100 * np.array(runs)
    for name, runs in json.loads(RESULTS.read_text(encoding="utf-8")).items()
}

LABELS = {str(strength): f"DRO, {strength:g}" for strength in STRENGTHS}
print("                        10 passes              30 passes")
print("                     worst     mean         worst     mean")
for name, accuracies in found.items():
    row = f"{LABELS.get(name, name):19}"
    for measurement in (4, 14):
        at = accuracies[:, measurement]
        worst = at.min(1)
        row += f" {worst.mean():5.1f} ± {worst.std(ddof=1):3.1f}  {at.mean():5.1f}    "
    print(row.rstrip())

figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(10.4, 3.8), layout="constrained"
)
for number, values in enumerate(once.values()):
    places = np.arange(len(GROUPS)) + 0.27 * (number - 1)
    left.bar(places, values, 0.25, color=numbered_style(number)["color"])
left.set_xticks(range(len(GROUPS)), [group.replace(", ", "\n") for group in GROUPS])
label_axes(left, "Groups in the run above", "", "test accuracy (%)")
passes = range(2, 31, 2)
for number, (method, name) in enumerate(NAMES.items()):
    worst = found[str(method)].min(2)
    style = numbered_style(number)
    middle.plot(passes, worst.mean(0), label=name, **{**style, "markersize": 3})
    low, high = worst.min(0), worst.max(0)
    middle.fill_between(
        passes, low, high, color=style["color"], alpha=0.15, linewidth=0
    )
label_axes(middle, "Worst group, mean and range", "passes over the data")
DRO = ["DRO, no regularizer", *map(str, STRENGTHS)]
right.axhline(0, color="0.5", linewidth=1)
for number, measurement in enumerate((4, 14), start=3):
    worst = {
        name: accuracies[:, measurement].min(1) for name, accuracies in found.items()
    }
    gains = np.array([worst[name] - worst["balanced"] for name in DRO])
    places = np.arange(len(DRO)) + 0.24 * (number - 3.5)
    color = numbered_style(number)["color"]
    right.plot(places, gains, ".", color=color, alpha=0.6)
    right.plot(
        places,
        gains.mean(1),
        *("_",),
        **{"color": color, "markersize": 12, "markeredgewidth": 2.5},
        label=f"mean gain after {passes[measurement]} passes",
    )
right.set_xticks(range(len(DRO)), ["none", *map(str, STRENGTHS)])
label_axes(
    right,
    "Group DRO minus balanced, by seed",
    "strength",
    "worst group, points",
)
for panel in (left, middle):
    panel.set_ylim(0, 102)
shared_legend(figure, [middle, right], num_columns=5)
plt.show()
