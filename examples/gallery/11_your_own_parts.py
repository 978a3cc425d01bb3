"""
Your own stepper, rule and set
==============================

For someone with a method of their own who wants to compare it with the library's.
About 20 lines for each part, and `neada.testing` says whether it keeps the promises
that the rest relies on.
"""

# %%
# A set: the points between two parallel planes, a slab. It implements the methods of
# `Set` that begin with an underscore; they get tensors that have been checked.
import math

import matplotlib.pyplot as plt
import torch

import neada
from neada.testing import check_rule, check_set, check_stepper


class Slab(neada.sets.Set):
    """The points whose mean is between -width and width."""

    def __init__(self, width):
        self.width = width

    def __repr__(self):
        return f"Slab({self.width})"

    def _mean(self, tensors):
        return float(torch.cat([t.reshape(-1) for t in tensors]).double().mean())

    def _rounding(self, tensors):
        largest = max(float(t.abs().max()) for t in tensors)
        return 4.0 * torch.finfo(tensors[0].dtype).eps * (self.width + largest)

    def _project_(self, tensors):
        mean = self._mean(tensors)
        if abs(mean) > self.width + self._rounding(tensors):
            for tensor in tensors:
                tensor.sub_(mean - math.copysign(self.width, mean))

    def _contains(self, tensors):
        return abs(self._mean(tensors)) <= self.width + self._rounding(tensors)


check_set(Slab(0.5), shape=(4, 3))


# %%
# A rule: like criterion I, but no more accurate than a floor. It answers False while
# the gradient is unknown, and comparisons of tensors answer for every row.
class Floored(neada.stopping.StoppingRule):
    """Stop where the squared mapping is at most 1/(t+1), or a floor."""

    def __init__(self, floor=1e-8):
        self.floor = floor

    def __call__(self, state):
        if state.grad_sq_y is None:
            return False
        return state.grad_sq_y <= max(self.floor, 1.0 / (state.t + 1))

    def __str__(self):
        return f"squared gradient mapping <= max(1/(t+1), {self.floor:g})"


check_rule(Floored() | neada.stopping.FixedSteps(50))


# %%
# A stepper: extragradient with an anchor (Yoon & Ryu 2021), which pulls both players
# back to their start by a share that falls. `evaluate` takes both gradients and counts
# them.
class Anchored(neada.Stepper):
    """z' = z + (z0 - z)/(k+2) - lr G(z), then the same with G(z')."""

    def __init__(self, x, y, lr):
        super().__init__([(x, None)], [(y, None)], rowwise=False)
        self.players, self.lr = [(p, -lr) for p in x] + [(p, lr) for p in y], lr
        self.anchor = [p.detach().clone() for p, _ in self.players]

    def _step(self, closure):
        start = [p.detach().clone() for p, _ in self.players]
        for _ in range(2):
            at_x, at_y = self.evaluate(closure)
            with torch.no_grad():
                for (p, lr), z, z0 in zip(
                    self.players, start, self.anchor, strict=True
                ):
                    p.copy_(z + (z0 - z) / (self.outer_steps + 2) + lr * p.grad)
        self.inner_steps += 1
        return at_x.value, at_x.mapping_sq, at_y.mapping_sq, ""

    def state_dict(self):
        return {**super().state_dict(), "anchor": self.anchor}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.anchor = state_dict["anchor"]


# %%
# Without its anchor in the state, it would not go on as it was, and the battery says
# so:
class Forgetful(Anchored):
    state_dict = neada.Stepper.state_dict
    load_state_dict = neada.Stepper.load_state_dict


try:
    check_stepper(lambda x, y: Forgetful(x, y, lr=0.2))
except AssertionError as error:
    print(error)
check_stepper(lambda x, y: Anchored(x, y, lr=0.2))

# %%
# On a bilinear game, where gradient descent ascent diverges, against the library's
# extragradient with the same learning rate.
generator = torch.Generator().manual_seed(0)
matrix = torch.randn(20, 20, generator=generator, dtype=torch.float64)
matrix /= torch.linalg.matrix_norm(matrix, 2)
makers = {
    "Anchored (own)": lambda x, y: Anchored(x, y, lr=0.3),
    "Extragradient": lambda x, y: neada.Extragradient(x, y, lr_x=0.3, lr_y=0.3),
}
figure, axis = plt.subplots(figsize=(6.0, 3.8), constrained_layout=True)
for name, make in makers.items():
    x, y = (torch.ones(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    stepper = make([x], [y])
    calls, norms = [], []
    for _ in range(2000):
        info = stepper.step(lambda x=x, y=y: x @ matrix @ y)
        calls.append(stepper.total_calls)
        norms.append(math.sqrt(info.grad_sq_x + info.grad_sq_y))
    axis.loglog(calls, norms, label=name)
axis.set(
    xlabel="gradient calls",
    ylabel="norm of both gradients",
    title="bilinear game, 20 + 20",
)
axis.legend()
plt.show()
