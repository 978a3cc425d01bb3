"""Folding: equal values and input gradients, an unchanged network, and current weights."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from neada import models, robust
from neada.folding import folded
from neada.optim import AdGD
from neada.stopping import FixedSteps


class Own(nn.Module):
    """Convolutions `c`, `d` and batch norms `b`, `e`, called by a function."""

    def __init__(self, flow, **options) -> None:
        super().__init__()
        self.c, self.d = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.b, self.e = (nn.BatchNorm2d(3, **options) for _ in range(2))
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        return self.flow(self, x)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def residual(m: Own, x: Tensor) -> Tensor:
    return functional.relu(m.e(m.d(functional.relu(m.b(m.c(x))))) + x)


def activations(m: Own, x: Tensor) -> Tensor:
    """In place where nothing else uses the input and the derivative follows from the output."""
    h = functional.elu(m.b(m.c(x)), 0.5)
    return functional.leaky_relu(m.e(m.d(h)), -0.1)


def used_after_activation(m: Own, x: Tensor) -> Tensor:
    h = m.b(m.c(x))
    return functional.relu(h) + h


def keep(m: Own, x: Tensor) -> Tensor:
    m.kept = m.c(x)
    return m.b(m.kept)


def without_gradient(m: Own, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.c(x)
    return m.b(h) + x


def modified_in_place(m: Own, x: Tensor) -> Tensor:
    h = m.c(y := x.detach() + 1.0)
    y.add_(1.0)
    return m.b(h) + x


def hooked() -> nn.Module:
    model = Own(residual)
    model.c.register_forward_hook(lambda _, inputs, output: 2.0 * output)
    return model


def normalized() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4))


# The network and the number of batch norms that are folded.
NETWORKS = {
    "paper": (lambda: nn.Sequential(nn.Conv2d(3, 1, 1), models.cnn((1, 28, 28), 10)), 3),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(2352, 4), nn.BatchNorm1d(4)), 1),
    "options": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 3, stride=2, groups=3, dilation=2), nn.BatchNorm2d(6, momentum=None)),
            *(nn.Conv2d(6, 2, 3, padding="same", padding_mode="circular", bias=False),),
            nn.BatchNorm2d(2, affine=False),
        ),
        2,
    ),
    "wide kernel": (lambda: nn.Sequential(nn.Conv2d(3, 6, (3, 5)), nn.BatchNorm2d(6)), 1),
    "residual": (lambda: Own(residual), 2),
    "activations": (lambda: Own(activations), 2),
    "used after activation": (lambda: Own(used_after_activation), 0),
    "shared convolution": (lambda: Own(lambda m, x: m.e(m.c(m.b(m.c(x))))), 2),
    "shared batch norm": (lambda: Own(lambda m, x: m.b(m.d(m.b(m.c(x))))), 2),
    "decided by data": (lambda: Own(lambda m, x: m.b(m.c(x)) if x.sum() > 0 else m.c(x)), 1),
    "used twice": (lambda: Own(lambda m, x: m.e(m.d(m.b(h := m.c(x)))) + h), 1),
    "kept": (lambda: Own(keep), 0),
    "returned": (lambda: Own(lambda m, x: torch.cat([m.c(x), m.b(x)])), 0),
    "no statistics": (lambda: Own(residual, track_running_stats=False), 0),
    "no gradient": (lambda: Own(without_gradient), 0),
    "modified in place": (lambda: Own(modified_in_place).requires_grad_(False), 0),
    "custom gradient": (lambda: Own(lambda m, x: m.b(Reverse.apply(m.c(x)))), 0),
    "custom gradient of a copy": (lambda: Own(lambda m, x: m.b(h := m.c(x)) + Reverse.apply(h)), 0),
    "checkpointed": (  # folded where no gradient is computed
        lambda: Own(lambda m, x: checkpoint(lambda v: m.b(m.c(v)), x, use_reentrant=False)),
        1,
    ),
    "hook": (hooked, 0),
    "weight norm": (normalized, 0),
    "half precision": (lambda: Own(lambda m, x: residual(m, x.bfloat16()).float()).bfloat16(), 0),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """A network in evaluation mode with random statistics, and inputs."""
    torch.manual_seed(1)
    model, inputs = NETWORKS[name][0](), torch.rand(3, 3, 28, 28)
    for module in model.modules():
        if getattr(module, "running_var", None) is not None:
            module.running_mean.uniform_(-1.0, 1.0)
            module.running_var.uniform_(0.1, 3.0)
    return model.eval(), inputs


def with_gradient(function, inputs: Tensor) -> tuple[Tensor, Tensor]:
    y = inputs.clone().requires_grad_()
    outputs = function(y)
    outputs.sin().sum().backward()
    return outputs.detach(), y.grad


def num_batch_norms(function, inputs: Tensor) -> int:
    with torch.profiler.profile() as profile, torch.no_grad():
        function(inputs)
    return sum(event.name == "aten::batch_norm" for event in profile.events())


@pytest.mark.parametrize("name", NETWORKS)
def test_values_and_input_gradients_are_equal(name: str) -> None:
    model, inputs = made(name)
    state = copy.deepcopy(model.state_dict())
    expected = with_gradient(model, inputs)
    fast = folded(model)
    for _ in range(2):
        torch.testing.assert_close(with_gradient(fast, inputs), expected, rtol=1e-4, atol=1e-4)
    folds = num_batch_norms(model, inputs) - num_batch_norms(fast, inputs)
    assert folds == NETWORKS[name][1]
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0.0, atol=0.0)
    torch.testing.assert_close(with_gradient(model, inputs), expected, rtol=0.0, atol=0.0)


def test_other_functions_are_provided_unchanged() -> None:
    training = made("residual")[0].train()
    compiled = torch.compile(made("residual")[0], backend="eager")
    for model in (training, compiled, functional.relu, nn.Linear(2, 2).eval()):
        assert folded(model) is model


def test_changes_between_two_functions_are_noticed() -> None:
    model, inputs = made("residual")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        fast = folded(model)
        torch.testing.assert_close(fast(inputs), model(inputs), rtol=1e-4, atol=1e-4)
        model.train()(inputs).square().mean().backward()  # changes the running statistics
        optimizer.step()
        model.eval()
    model.b.train()  # only one of the two is frozen
    fast = folded(model)
    assert num_batch_norms(fast, inputs) == 1
    torch.testing.assert_close(fast(inputs), model(inputs), rtol=1e-4, atol=1e-4)


def test_errors_of_the_network_do_not_disable_folding() -> None:
    model, inputs = made("residual")
    fast = folded(model)
    with pytest.raises(RuntimeError):
        fast(torch.zeros(2, 2))
    assert num_batch_norms(fast, inputs) == 0


@pytest.mark.parametrize("batch_norm", ["frozen", "batch"])
def test_inner_loops_find_the_same_inputs(batch_norm: str) -> None:
    model = models.make("small-cnn", (1, 8, 8), 10, seed=0)
    inputs, targets = torch.rand(5, 1, 8, 8), torch.arange(5)
    adversary = robust.Adversary(
        optimizer=lambda params: AdGD(params, lr=0.1, rowwise=True, maximize=True),
        stopping=FixedSteps(5),
        batch_norm=batch_norm,  # type: ignore[arg-type]
    )
    found = [
        robust.WRM(
            copy.deepcopy(model),
            functional.cross_entropy,
            1.3,
            adversary=replace(adversary, fold=fold),
        ).perturb(inputs, targets)
        for fold in (True, False)
    ]
    torch.testing.assert_close(found[0].inputs, found[1].inputs, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[0].inputs, found[1].inputs) == (batch_norm == "batch")
