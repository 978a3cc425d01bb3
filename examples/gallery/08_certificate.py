"""
A certificate, and what it does and does not say
================================================

For whoever has to defend a number about robustness, or to judge somebody else's. An
attack shows how bad a loss can be made; a certificate bounds how bad it can become.
This page computes both for the same networks, and looks at what the word "certified"
covers.
"""

import math
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import neada
from neada.plots import label_axes, numbered_style, shared_legend
from neada.stopping import FixedSteps

digits = neada.data.load("digits")
dataset = TensorDataset(digits.inputs_train, digits.targets_train)
inputs, targets = digits.inputs_test[:200], digits.targets_test[:200]


def objective_of(model: nn.Module, gamma: float) -> neada.robust.WRM:
    adversary = neada.robust.Adversary(stopping=FixedSteps(100))
    return neada.robust.WRM(
        model, cross_entropy, gamma, bounds=(0.0, 1.0), adversary=adversary
    )


def train(model: nn.Module, gamma: float | None, epochs: int = 10) -> nn.Module:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
    robust = neada.robust.WRM(model, cross_entropy, gamma or 1.0, bounds=(0.0, 1.0))
    for _ in range(epochs):
        for batch, labels in loader:
            if gamma is None:
                optimizer.zero_grad()
                cross_entropy(model(batch), labels).backward()
                optimizer.step()
            else:
                robust.step(optimizer, batch, labels)
    return model.eval()


# %%
# The bound
# ---------
#
# Somebody moves the 200 test images within [0, 1], by a squared distance of ``rho`` on
# average, as they like: one image far and the others not at all, if that is worse. The
# certificate bounds the mean loss afterwards. For that it needs a number ``smoothness``
# that the curvature of the loss never exceeds, and a price ``gamma`` above half of it.
# Every such price gives a valid bound, which is a straight line in ``rho``; so the
# least of several is valid, too.


def certify(model: nn.Module) -> list[neada.robust.Certificate]:
    """Certificates for a range of prices."""
    robust, data = objective_of(model, gamma=1.0), [(inputs, targets)]
    first = neada.robust.certificate(robust, data, rho=0.0, gamma=1e6, max_steps=0)
    lowest = max(0.5 * first.smoothness, 1e-3)
    return [
        neada.robust.certificate(robust, data, rho=0.0, gamma=factor * lowest)
        for factor in np.geomspace(1.02, 30.0, 12)
    ]


def least_bound(certificates: list[neada.robust.Certificate], rho: float) -> float:
    return min(found.value + found.gamma * rho for found in certificates)


# %%
# The attack
# ----------
#
# An attack of the same kind must be free to spend more on some images than on others.
# Ascent on the loss minus ``price`` times the squared distance does that; every price
# gives one point: the mean squared distance that it moved, and the mean loss there.

PRICES = (1.2, 1.5, 2.0, 2.5, 3.5, 5.0, 10.0, 20.0, 50.0)


def attacked(model: nn.Module, price: float) -> tuple[Tensor, Tensor]:
    """Squared distances and perturbed inputs."""
    worst = objective_of(model, price).perturb(inputs, targets).inputs
    return (worst - inputs).square().flatten(1).sum(1), worst


def loss_of(model: nn.Module, images: Tensor) -> float:
    with torch.no_grad():
        return cross_entropy(model(images), targets).item()


# %%
# Four networks
# -------------
#
# A linear one trained with WRM, and one with a hidden layer, trained with WRM and
# without. The smoothness of these is proven from the norms of their layers. The fourth
# is the linear one behind a layer that rounds pixels to thirds. That is no smooth
# function, nothing is proven, and what stands in for the smoothness is the curvature at
# the images: zero, since a small change of a pixel changes nothing. Ascent finds
# nothing there either, so this network gets the images that were found for the one
# without rounding.


class Rounded(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return (3 * images).round() / 3


torch.manual_seed(0)
linear = train(neada.models.linear((1, 8, 8), 10), gamma=2.0)
hidden = train(neada.models.mlp((1, 8, 8), 10, hidden=(32,)), gamma=2.0)
plain = train(neada.models.mlp((1, 8, 8), 10, hidden=(32,)), gamma=None)
NETWORKS = {  # the network, and the one that the attack sees
    "linear, WRM": (linear, linear),
    "hidden layer, WRM": (hidden, hidden),
    "hidden layer, plain": (plain, plain),
    "linear, rounded pixels": (nn.Sequential(Rounded(), linear), linear),
}
RHOS = np.linspace(0.0, 0.3, 61)

bounds, losses, reasons = {}, {}, {}
print("                        kind       smoothness  mean loss  bound for rho = 0.1")
for name, (model, seen) in NETWORKS.items():
    certificates = certify(model)
    bounds[name] = [least_bound(certificates, rho) for rho in RHOS]
    losses[name] = [(0.0, loss_of(model, inputs))]
    for price in reversed(PRICES):
        squared_distances, worst = attacked(seen, price)
        losses[name].append((squared_distances.mean().item(), loss_of(model, worst)))
    print(
        f"{name:23} {certificates[0].kind:9}  {certificates[0].smoothness:9.1f} "
        f"{losses[name][0][1]:10.2f} {least_bound(certificates, 0.1):10.2f}"
    )
    reasons[certificates[0].kind] = certificates[0].reason
for kind, reason in reasons.items():
    print(textwrap.fill(f"{kind}: {reason}", 80))

# %%
# What it says
# ------------
#
# "Certified": no way to move these images by that much makes the mean loss larger. The
# truth is between the two curves of a network in the figure below. For the linear
# network they are close. For a hidden layer the proof multiplies the norms of the
# layers as if their worst directions met, and the bound is far above what the attack
# finds. Training with WRM costs loss on unchanged images, and lowers the bound for
# ``rho = 0.1`` to less than a third.
#
# What it does not say
# --------------------
#
# "Estimated" is no guarantee. For the network with rounded pixels the estimate hardly
# exceeds the loss of the unchanged images, and the borrowed images exceed it: the right
# panel shows a bound that is wrong.
#
# It is about the mean loss, not about single images and not about accuracy. Here is
# what a shift that the certificate allows does to the linear network: some images go
# further than the mean, and some are lost. A wrong answer has a loss of log 2 at least,
# so the bound of the loss, divided by log 2, bounds the share of wrong answers; but a
# number above 1 says nothing about a share.

squared_distances, worst = attacked(linear, price=2.0)
with torch.no_grad():
    right_before = (linear(inputs).argmax(1) == targets).double().mean().item()
    right_after = (linear(worst).argmax(1) == targets).double().mean().item()
mean, largest = squared_distances.mean().item(), squared_distances.max().item()
print(f"squared distance: mean {mean:.3f}, largest {largest:.3f}")
print(f"accuracy: {right_before:.1%} before, {right_after:.1%} after")
bound = least_bound(certify(linear), mean)
print(f"bound of the share of wrong answers: {bound / math.log(2):.2f}")

# %%
# And it is about the images that were looked at. Other test images are other data: for
# ``rho = 0`` the bound is about the mean loss of these 200, and others may have more.

with torch.no_grad():
    outputs = linear(digits.inputs_test[200:])
others = cross_entropy(outputs, digits.targets_test[200:]).item()
print(f"bound for rho = 0: {bounds['linear, WRM'][0]:.3f}")
print(f"mean loss of the other 160 test images, unchanged: {others:.3f}")

figure, panels = plt.subplots(1, 3, figsize=(9.8, 3.8), layout="constrained")
for panel, title, names in (
    (panels[0], "Linear: certified", ["linear, WRM"]),
    (
        panels[1],
        "Hidden layer: certified",
        ["hidden layer, WRM", "hidden layer, plain"],
    ),
    (panels[2], "Rounded pixels: estimated, wrong", ["linear, rounded pixels"]),
):
    for number, name in enumerate(names):
        style = {"markersize": 4, "linewidth": 1.5}
        color = numbered_style(number)["color"]
        kind = "plain training" if name.endswith("plain") else "WRM"
        panel.plot(RHOS, bounds[name], color=color, label=f"bound, {kind}", **style)
        panel.plot(
            *zip(*losses[name], strict=True),
            **{"color": color, "linestyle": "--", "marker": "o", **style},
            label=f"loss under attack, {kind}",
        )
    panel.set_xlim(0, 0.3)
    label_axes(panel, title, "rho (mean squared distance)", "mean loss")
for panel in (panels[0], panels[2]):
    panel.set_ylim(0, 1.7)
panels[1].set_yscale("log")
shared_legend(figure, panels)
plt.show()
