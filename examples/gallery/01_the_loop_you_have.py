"""
Robust training in the loop you already have
============================================

For whoever has a training loop with all its parts in place and wants a robust model
without giving that loop to a framework. The loop here has bf16 autocast, gradient
accumulation and clipping, a OneCycle schedule, AdamW, weight averaging, batch norm and
dropout. Three lines change.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import neada
from neada.plots import label_axes, numbered_style, shared_legend

digits = neada.data.load("digits")  # 8x8 images with values in [0, 1]
dataset = TensorDataset(digits.inputs_train, digits.targets_train)


def make_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ELU()),
        *(
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ELU(),
            nn.MaxPool2d(2),
        ),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10)),
    )


# %%
# The loop
# --------
#
# ``robust.perturb`` looks for worse inputs near those of the batch, ``robust.loss`` is
# the model's loss there, and everything after ``backward`` is the loop's own business.
# The adversary has no learning rate and no number of steps to choose: with every step
# of the model its rule gets stricter. ``gamma`` is the price it pays per squared
# distance; a lower price allows larger perturbations.
#
# Two things to know. When gradients are accumulated, ``advance=False`` says that this
# batch is not yet a step of the model. And nothing has to be done about batch norm and
# dropout: while the adversary works, batch norm uses its running statistics without
# changing them and dropout is off; in ``robust.loss`` the layers are as the loop has
# set them.


def train(
    gamma: float | None, epochs: int = 5, accumulate: int = 2
) -> tuple[nn.Module, list[int]]:
    torch.manual_seed(0)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
    model = make_model()
    average = AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    num_steps = epochs * (len(loader) // accumulate)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=num_steps
    )
    if gamma is not None:  # the first new line
        robust = neada.robust.WRM(model, cross_entropy, gamma, bounds=(0.0, 1.0))

    inner_steps = []
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(loader, start=1):
            steps_now = i % accumulate == 0
            with torch.autocast("cpu", torch.bfloat16):
                if gamma is None:
                    loss = cross_entropy(model(inputs), targets)
                else:  # the two others
                    worst = robust.perturb(inputs, targets)
                    loss = robust.loss(worst, advance=steps_now)
                    inner_steps.append(worst.inner_steps)
            (loss / accumulate).backward()
            if steps_now:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                average.update_parameters(model)
    return average.module.eval(), inner_steps


plain_model, _ = train(gamma=None)
robust_model, inner_steps = train(gamma=2.0)

# %%
# What it changed
# ---------------
#
# Accuracy on the test images when each may be moved by a distance ``eps`` within
# [0, 1], as found by projected gradient ascent. A stronger attack may find more.

sizes = [0.3, 0.6, 0.9, 1.2]
test = [(digits.inputs_test[:200], digits.targets_test[:200])]
accuracies = {}
for name, model in (("plain", plain_model), ("robust", robust_model)):
    found = neada.attacks.robust_accuracy(
        model, test, "pgd", sizes, norm="l2", bounds=(0.0, 1.0), num_steps=10
    )
    accuracies[name] = [found.clean, *found.attacked.values()]
    print(f"{name:7} clean {found.clean:.1%}, eps 0.6 {found.attacked[0.6]:.1%}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
for number, (name, values) in enumerate(accuracies.items()):
    shares = [100 * value for value in values]
    left.plot([0.0, *sizes], shares, label=f"{name} training", **numbered_style(number))
label_axes(
    left,
    "Accuracy under attack",
    "eps (Euclidean distance, pixel values)",
    "accuracy (%)",
)
left.set_ylim(0, 102)
right.plot(
    range(1, len(inner_steps) + 1), inner_steps, color=numbered_style(1)["color"], lw=1
)
label_axes(
    right, "What the rule asks of the adversary", "batch", "inner steps of the batch"
)
shared_legend(figure, [left])
plt.show()
