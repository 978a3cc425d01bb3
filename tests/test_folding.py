"""Folding: the same values and input gradients, and nothing else changes."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from neada import attacks, models, robust
from neada.folding import folded
from neada.optim import AdGD
from neada.stopping import FixedSteps


class Residual(nn.Module):
    def __init__(self, channels: int = 4, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(channels, channels, 1, stride=stride))
        self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Own(nn.Module):
    """Layers `c`, `d` (convolutions) and `b`, `e` (batch norms), used as a function says."""

    def __init__(self, flow, channels: int = 3) -> None:
        super().__init__()
        self.c, self.d = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.b, self.e = (nn.BatchNorm2d(channels) for _ in range(2))
        self.flag = False
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


class Mine(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2.0 * super().forward(input)


IMAGES, VECTORS, SIGNALS, SOLIDS = (5, 3, 8, 8), (5, 3), (5, 3, 9), (3, 2, 4, 4, 4)


def keep(m: Own, x: Tensor) -> Tensor:
    m.kept = m.c(x)
    return m.b(m.kept)


# The network, the shape of its inputs, and how many layers are folded.
ZOO = {
    "paper": (lambda: models.make("cnn", (1, 28, 28), 10, seed=0), (4, 1, 28, 28), 3),
    "small": (lambda: models.make("small-cnn", (1, 8, 8), 10, seed=0), (5, 1, 8, 8), 2),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())),
            nn.Sequential(nn.Conv2d(4, 2, 3)),
            nn.BatchNorm2d(2),
        ),
        IMAGES,
        2,
    ),
    "residual": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), Residual(), Residual(4, 2)), IMAGES, 6),
    "linear": (
        lambda: nn.Sequential(
            *(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.LeakyReLU(0.2), nn.Linear(6, 4, bias=False)),
            *(nn.BatchNorm1d(4), nn.LeakyReLU(-0.2), nn.Linear(4, 2), nn.BatchNorm1d(2)),
            nn.ELU(-0.5),
        ),
        VECTORS,
        3,
    ),
    "no affine": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False)),
        IMAGES,
        1,
    ),
    "groups, strides, padding": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 3, stride=2, groups=3, padding=2, dilation=2), nn.BatchNorm2d(6)),
            *(nn.Conv2d(6, 6, 3, padding="same", padding_mode="circular"), nn.BatchNorm2d(6)),
            *(nn.Conv2d(6, 4, (2, 3), groups=2, padding=(1, 2)), nn.BatchNorm2d(4)),
        ),
        IMAGES,
        3,
    ),
    "few channels": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, (3, 5), padding=(1, 3)), nn.BatchNorm2d(6), nn.ELU()),
            *(nn.Conv2d(6, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 5, 2), nn.BatchNorm2d(5)),
            *(nn.Conv2d(5, 1, 2), nn.BatchNorm2d(1), nn.Conv2d(1, 5, 2, padding=4)),
            *(nn.BatchNorm2d(5), nn.Conv2d(5, 4, 1), nn.BatchNorm2d(4)),
            *(nn.Conv2d(4, 5, 3, padding="same"), nn.BatchNorm2d(5)),
        ),
        IMAGES,
        7,
    ),
    "transposed": (
        lambda: nn.Sequential(
            *(nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), nn.BatchNorm2d(4)),
            *(nn.ConvTranspose2d(4, 6, 3, groups=2, padding=1, dilation=2), nn.BatchNorm2d(6)),
        ),
        IMAGES,
        2,
    ),
    "one dimension": (
        lambda: nn.Sequential(
            *(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()),
            *(nn.ConvTranspose1d(4, 2, 3, groups=2), nn.BatchNorm1d(2)),
        ),
        SIGNALS,
        2,
    ),
    "three dimensions": (
        lambda: nn.Sequential(
            *(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), nn.ReLU()),
            *(nn.ConvTranspose3d(4, 2, 2), nn.BatchNorm3d(2)),
        ),
        SOLIDS,
        2,
    ),
    "default arguments": (
        lambda: Own(lambda m, x, skip=None: m.b(m.c(x)) if skip is None else m.c(x)),
        IMAGES,
        1,
    ),
    # Not folded, and right.
    "batch norm first": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), IMAGES, 0),
    "channels elsewhere": (
        lambda: nn.Sequential(nn.Linear(9, 9), nn.BatchNorm1d(3)),
        SIGNALS,
        0,
    ),
    "shared batch norm": (lambda: Own(lambda m, x: m.b(m.d(m.b(m.c(x))))), IMAGES, 0),
    "shared convolution": (lambda: Own(lambda m, x: m.e(m.c(m.b(m.c(x))))), IMAGES, 0),
    "used twice": (lambda: Own(lambda m, x: m.b(h := m.c(x)) + h), IMAGES, 0),
    "activated and used": (
        lambda: Own(lambda m, x: functional.relu(z := m.b(m.c(x))) + z),
        IMAGES,
        1,
    ),
    "kept": (lambda: Own(keep), IMAGES, 0),
    "weight used elsewhere": (
        lambda: Own(lambda m, x: m.b(m.c(x)) + functional.conv2d(x, m.c.weight, padding=1)),
        IMAGES,
        0,
    ),
    "functional batch norm": (
        lambda: Own(
            lambda m, x: functional.batch_norm(m.c(x), m.b.running_mean, m.b.running_var) + m.e(x)
        ),
        IMAGES,
        0,
    ),
    "decided by the data": (
        lambda: Own(lambda m, x: m.b(m.c(x)) if x.sum() > 0.0 else m.c(x)),
        IMAGES,
        0,
    ),
    "asked for its shape": (lambda: Own(lambda m, x: m.b(h := m.c(x)) + h.shape[0]), IMAGES, 0),
    "subclass": (lambda: nn.Sequential(Mine(3, 4, 3), nn.BatchNorm2d(4)), IMAGES, 0),
    "weight norm": (
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4), nn.ReLU()
        ),
        IMAGES,
        0,
    ),
    "data parallel": (
        lambda: nn.DataParallel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))),
        IMAGES,
        0,
    ),
    "no statistics": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ELU()
        ),
        IMAGES,
        0,
    ),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    """A network in evaluation mode whose statistics and weights are not those of a new one."""
    make, shape, _ = ZOO[name]
    torch.manual_seed(1)
    model, inputs = make(), torch.rand(shape)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -1.0, 2.0)
            if module.running_mean is not None:
                module.running_mean.uniform_(-1.0, 1.0)
                module.running_var.uniform_(0.1, 3.0)
    return model.to(dtype).eval(), inputs.to(dtype)


def gradient_of(function, inputs: Tensor) -> tuple[Tensor, Tensor]:
    y = inputs.clone().requires_grad_()
    outputs = function(y)
    weights = torch.linspace(-1.0, 1.0, outputs.numel(), dtype=outputs.dtype)
    (gradient,) = torch.autograd.grad((outputs.reshape(-1) * weights).sum(), y)
    return outputs.detach(), gradient


def assert_same(model: nn.Module, inputs: Tensor, tol: float) -> None:
    expected = gradient_of(model, inputs)
    with folded(model) as fast:
        for _ in range(2):
            for found, right in zip(gradient_of(fast, inputs), expected, strict=True):
                assert found.dtype == right.dtype
                assert (found - right).abs().max() <= tol * right.abs().max()
        with torch.no_grad():
            assert (fast(inputs) - expected[0]).abs().max() <= tol * expected[0].abs().max()


def folds(model: nn.Module, inputs: Tensor) -> int:
    """How many batch norms torch is not asked to compute."""

    def num_computed(function) -> int:
        with torch.profiler.profile() as profile, torch.no_grad():
            function(inputs)
        return sum(event.name == "aten::batch_norm" for event in profile.events())

    with folded(model) as fast:
        fast(inputs)
        return num_computed(model) - num_computed(fast)


@pytest.mark.parametrize("name", ZOO)
def test_values_and_input_gradients_are_the_same(name: str) -> None:
    assert_same(*made(name, torch.float64), tol=1e-12)
    assert_same(*made(name), tol=1e-5)


@pytest.mark.parametrize("name", ZOO)
def test_folded_is_what_can_be(name: str) -> None:
    assert folds(*made(name)) == ZOO[name][2]


@pytest.mark.parametrize("name", ["paper", "residual", "transposed"])
def test_channels_last_stays(name: str) -> None:
    model, inputs = made(name)
    model = model.to(memory_format=torch.channels_last)
    assert_same(model, inputs.to(memory_format=torch.channels_last), tol=1e-5)
    with folded(model) as fast:
        pairs = list(fast._pairs.values())
    assert all(p.weight.stride() == p.old_weight.stride() for p in pairs)


def test_autocast() -> None:
    model, inputs = made("groups, strides, padding")
    exact = gradient_of(model, inputs)
    with torch.autocast("cpu", torch.bfloat16), folded(model) as fast:
        plain, found = gradient_of(model, inputs), gradient_of(fast, inputs)
    for mine, theirs, right in zip(found, plain, exact, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine - right).norm() <= 1.5 * (theirs - right).norm()


def test_second_derivatives() -> None:
    model, inputs = made("few channels", torch.float64)
    inputs = inputs[:1]
    with folded(model) as fast:
        hessians = [
            torch.autograd.functional.hessian(lambda v, f=f: f(v).sum(), inputs)
            for f in (model, fast)
        ]
    torch.testing.assert_close(*hessians)


# What the trace does not see.


def test_a_custom_gradient_between_is_kept() -> None:
    torch.manual_seed(0)
    model = Own(lambda m, x: m.b(Reverse.apply(m.c(x)))).eval()
    assert_same(model, torch.rand(IMAGES), tol=0.0)
    with folded(model) as fast:
        assert fast is model  # remembered


def test_another_way_through_the_network_is_seen() -> None:
    def flow(m: Own, x: Tensor) -> Tensor:
        h = m.c(x)
        z = m.b(h)
        return z + h if m.flag else z

    torch.manual_seed(0)
    model, inputs = Own(flow).eval(), torch.rand(IMAGES)
    assert folds(model, inputs) == 1
    model.flag = True
    assert folds(model, inputs) == 0
    assert_same(model, inputs, tol=0.0)


@pytest.mark.parametrize("register", ["forward", "forward_pre", "full_backward"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_hooks_are_called_and_see_what_they_always_saw(register: str, which: int) -> None:
    model, inputs = made("paper")
    seen: list[Tensor] = []
    handle = getattr(model[which], f"register_{register}_hook")(
        lambda _, *tensors: seen.append(tensors[-1][0].detach().clone())
    )
    assert_same(model, inputs, tol=0.0)
    assert len(seen) >= 3 and all(torch.equal(tensor, seen[0]) for tensor in seen[1:3])
    handle.remove()
    assert folds(model, inputs) == 3


# Nothing of the network changes.


def test_parameters_get_their_gradients_afterwards() -> None:
    model, inputs = made("paper")
    twin = copy.deepcopy(model)
    with folded(model) as fast:
        gradient_of(fast, inputs)
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for network in (model, twin):
        network(inputs).square().sum().backward()
    for mine, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, right.grad)


# The network changes between two blocks.


def test_changes_are_noticed() -> None:
    model, inputs = made("small")
    assert folds(model, inputs) == 2
    model[1].train()
    assert folds(model, inputs) == 1
    model[1].eval()
    with torch.no_grad():
        model[0].weight.mul_(2.0)
        model[1].running_mean.add_(1.0)
    assert folds(model, inputs) == 2
    assert_same(model, inputs, tol=1e-5)
    model[1] = nn.BatchNorm2d(16).eval()
    assert_same(model, inputs, tol=1e-5)
    model[3].weight = nn.Parameter(torch.rand_like(model[3].weight))
    assert_same(model, inputs, tol=1e-5)
    model[4] = nn.Identity()
    assert folds(model, inputs) == 1
    assert_same(model, inputs, tol=1e-5)
    model[3] = nn.Conv2d(16, 32, 3, padding=1)
    parametrizations.weight_norm(model[0])
    assert folds(model, inputs) == 0
    assert_same(model, inputs, tol=0.0)


# Where it is used.


def batch() -> tuple[nn.Module, Tensor, Tensor]:
    model, inputs = made("small")
    return model.train(), inputs, torch.arange(5)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("kind", ["wrm", "adversarial"])
def test_inner_loops_find_the_same_inputs(kind: str, per_sample: bool) -> None:
    model, inputs, targets = batch()
    found = {}
    for fold in (True, False):
        adversary = robust.Adversary(
            optimizer=lambda params: AdGD(params, lr=0.1, rowwise=True, maximize=True),
            stopping=FixedSteps(5),
            per_sample=per_sample,
            fold=fold,
        )
        make = robust.WRM if kind == "wrm" else robust.AdversarialTraining
        objective = make(
            model, functional.cross_entropy, 1.3 if kind == "wrm" else 0.1, adversary=adversary
        )
        state = copy.deepcopy(model.state_dict())
        worst = objective.perturb(inputs, targets)
        assert all(torch.equal(state[name], now) for name, now in model.state_dict().items())
        assert all(module.training for module in model.modules())
        found[fold] = worst
    assert found[True].calls_y == found[False].calls_y
    torch.testing.assert_close(found[True].inputs, found[False].inputs, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found[True].inputs, found[False].inputs)


def test_statistics_of_the_batch_are_not_folded() -> None:
    model, inputs, targets = batch()
    found = [
        robust.WRM(
            copy.deepcopy(model),
            functional.cross_entropy,
            1.3,
            adversary=robust.Adversary(batch_norm="batch", fold=fold),
        ).perturb(inputs, targets)
        for fold in (True, False)
    ]
    assert torch.equal(found[0].inputs, found[1].inputs)


def test_pgd_is_judged_by_the_network_itself() -> None:
    model, inputs, targets = batch()
    model.eval()
    plain = attacks.pgd(lambda v: model(v), inputs, targets, 0.1, num_steps=5)
    fast = attacks.pgd(model, inputs, targets, 0.1, num_steps=5)
    losses = [functional.cross_entropy(model(z), targets, reduction="none") for z in (plain, fast)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-4)
    weak = attacks.fgsm(model, inputs, targets, 0.1)
    weak_losses = functional.cross_entropy(model(weak), targets, reduction="none")
    assert bool((losses[1] >= weak_losses).all())
