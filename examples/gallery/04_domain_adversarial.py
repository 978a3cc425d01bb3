"""
Domain-adversarial training with declared signs
===============================================

For people who adapt a classifier to unlabeled data from elsewhere and have a
gradient-reversal layer in their network for it. A reversal layer hides a game inside of
``backward``; here the game is written down, one optimizer descends and the other one
ascends, and the method is a choice.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import neada
from neada.plots import label_axes, numbered_style, shared_legend

RESULTS = Path(sys.argv[0]).parent / "results" / "04_domain_adversarial.json"

# %%
# The data
# --------
#
# Source: half of the digits, with labels. Target: the other half, shifted by one of
# their eight pixels, without labels. The test images are shifted, too.


def shifted(images: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(images[..., :1]), images[..., :-1]], dim=-1)


digits = neada.data.load("digits")
half = len(digits.inputs_train) // 2
source, labels = digits.inputs_train[:half], digits.targets_train[:half]
target = shifted(digits.inputs_train[half:])
target_test, labels_test = shifted(digits.inputs_test), digits.targets_test


# %%
# The game
# --------
#
# The domain loss says how well the discriminator (y) tells source from target by their
# features. It stands in the objective with a minus: the discriminator ascends, which
# makes its loss small; features and classifier (x) descend, which makes it large, and
# the loss of the labels small.


class Players:
    """The networks of both players and the function that they disagree about."""

    def __init__(self, seed: int, weight: float = 0.3) -> None:
        torch.manual_seed(seed)
        self.weight = weight
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ELU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ELU(), nn.Flatten()),
            *(nn.Linear(512, 64), nn.ELU()),
        )
        self.classifier = nn.Linear(64, 10)
        self.discriminator = nn.Sequential(
            nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1), nn.Flatten(0)
        )

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features of a batch of the source and of the target, and labels."""
        places = torch.randint(len(source), (64,))
        elsewhere = torch.randint(len(target), (64,))
        both = self.features(torch.cat([source[places], target[elsewhere]]))
        return both[:64], both[64:], labels[places]

    def domain_loss(self, from_source: Tensor, from_target: Tensor) -> Tensor:
        scores = self.discriminator(torch.cat([from_source, from_target]))
        truth = torch.cat([torch.ones(len(from_source)), torch.zeros(len(from_target))])
        return binary_cross_entropy_with_logits(scores, truth)

    def objective(self) -> Tensor:
        from_source, from_target, targets = self.draw()
        label_loss = cross_entropy(self.classifier(from_source), targets)
        return label_loss - self.weight * self.domain_loss(from_source, from_target)

    def optimizers(self) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        x = [*self.features.parameters(), *self.classifier.parameters()]
        y = list(self.discriminator.parameters())
        return torch.optim.Adam(x, 1e-3), torch.optim.Adam(y, 1e-3, maximize=True)

    def accuracy(self, images: Tensor) -> float:
        with torch.no_grad():
            answers = self.classifier(self.features(images)).argmax(1)
        return (answers == labels_test).float().mean().item()


# %%
# The same gradient as with a reversal layer
# ------------------------------------------
#
# For the features the layer gives what the sign gives. For the discriminator it leaves
# out the weight, which the sign applies to both players; Adam does not notice that.


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return features.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradient, None


players = Players(seed=0)
x = list(players.features.parameters())
torch.manual_seed(1)
signed = torch.autograd.grad(players.objective(), x)
torch.manual_seed(1)
from_source, from_target, targets = players.draw()
reversed_features = Reversal.apply(
    torch.cat([from_source, from_target]), players.weight
)
loss = cross_entropy(players.classifier(from_source), targets)
loss = loss + players.domain_loss(*reversed_features.split(64))
by_layer = torch.autograd.grad(loss, x)
difference = max(
    (a - b).abs().max().item() for a, b in zip(signed, by_layer, strict=True)
)
print(f"largest difference of a gradient's entries: {difference:.1e}")

# %%
# Training
# --------
#
# Once the signs are declared the method can be changed: both move at once as with a
# reversal layer (``Simultaneous``), the discriminator moves first (``Alternating``), or
# it takes several steps (``NeAda``; the gradients are noisy, so the rule has a cap).

STEPPERS: dict[str, Callable[..., neada.Stepper]] = {
    "simultaneous": neada.Simultaneous,
    "alternating": lambda x, y: neada.Alternating(x, y, order="yx"),
    "NeAda, 3 steps at most": lambda x, y: neada.NeAda(
        x, y, neada.stopping.InnerSteps() | neada.stopping.FixedSteps(3)
    ),
}


def train(method: str, seed: int, num_steps: int) -> dict[str, Any]:
    players = Players(seed)
    x_optimizer, y_optimizer = players.optimizers()
    steps, accuracies = [], []
    if method in STEPPERS:
        stepper = STEPPERS[method](x_optimizer, y_optimizer)
    for step in range(1, num_steps + 1):
        if method in STEPPERS:
            stepper.step(players.objective)
        else:
            from_source, _, targets = players.draw()
            x_optimizer.zero_grad()
            cross_entropy(players.classifier(from_source), targets).backward()
            x_optimizer.step()
        if step % 50 == 0:
            steps.append(step)
            accuracies.append(players.accuracy(target_test))
    source_accuracy = players.accuracy(digits.inputs_test)
    return {"steps": steps, "target": accuracies, "source": source_accuracy}


run = train("alternating", seed=0, num_steps=300)
print(f"after 300 steps: target {run['target'][-1]:.1%}, source {run['source']:.1%}")

# %%
# Five seeds
# ----------
#
# ``python examples/gallery/04_domain_adversarial.py --full`` repeats this. For one step
# of the features NeAda takes three of the discriminator: four gradients, where the
# other games take two. Of the weights 0.3 and 1 the one was taken that did better on
# the shifted test images for two of these seeds; whoever has no labels of the target
# at all cannot choose like that.

if "--full" in sys.argv:
    methods = ("source only", *STEPPERS)
    runs = {name: [train(name, seed, 600) for seed in range(5)] for name in methods}
    RESULTS.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
runs = json.loads(RESULTS.read_text(encoding="utf-8"))

figure, panel = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for number, (name, several) in enumerate(runs.items()):
    shares = 100 * np.array([run["target"] for run in several])
    last = shares[:, -1]
    source_share = 100 * sum(run["source"] for run in several) / len(several)
    print(
        f"{name:23} target {last.mean():.1f} % ({last.min():.1f} to {last.max():.1f}), "
        f"source {source_share:.1f} %"
    )
    style = numbered_style(number)
    panel.plot(several[0]["steps"], shares.mean(0), label=name, **style)
    low, high = shares.min(0), shares.max(0)
    panel.fill_between(
        several[0]["steps"], low, high, color=style["color"], alpha=0.1, linewidth=0
    )
label_axes(
    panel,
    "Mean and range of five seeds",
    "steps of features and classifier",
    "accuracy on the target domain (%)",
)
shared_legend(figure, [panel], num_columns=2)
plt.show()
