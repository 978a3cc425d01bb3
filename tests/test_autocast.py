"""Results under `torch.autocast`, whose cache must not return a tensor's content before a move.

Every run is compared with the same run without the cache, bit for bit, and with float32.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import neada
from neada import attacks, optim
from neada.attacks.square import square
from neada.attacks.worst_case import attack_in_turn
from neada.robust import TRADES, WRM, AdversarialTraining, Adversary, GroupDRO
from neada.robust.objective import InputObjective
from neada.solve.methods import Players, make_stepper
from neada.stopping import FixedSteps
from optimizers import CASES, Case

SIZE = 6
TOLERANCE = 0.05  # bfloat16 rounds to 0.004, and errors of several steps add up


def check(run: Callable[[], Tensor], *, same_sums: bool = True, resolved: bool = True) -> None:
    """Compare a run in one autocast region with those without a cache and without autocast.

    Args:
        run: Returns the numbers that are compared.
        same_sums: False if an evaluation uses a tensor in several products: their gradients are
            then added in bfloat16 with the cache, and in float32 without it.
        resolved: False if bfloat16 does not resolve the differences that the method computes.
    """
    exact = run()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        uncached = run()
    with torch.autocast("cpu", torch.bfloat16):
        cached = run()
    assert torch.equal(cached, uncached) or not same_sums
    assert not torch.equal(cached, exact)  # it was evaluated in bfloat16
    if resolved:
        torch.testing.assert_close(cached, exact, rtol=TOLERANCE, atol=TOLERANCE)


# Steppers and `minimax`.


class Game:
    """A strongly convex-strongly concave game in which each player enters by one product only."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        near = torch.randn(3, SIZE, SIZE, generator=generator) / 6.0
        self.turn_x, self.turn_y, self.mix = near + torch.eye(SIZE)
        self.goals = torch.randn(2, 1, SIZE, generator=generator)
        self.x = torch.zeros(1, SIZE, requires_grad=True)
        self.y = torch.zeros(1, SIZE, requires_grad=True)

    def values(self, x: Tensor, y: Tensor) -> Tensor:
        u, v = x @ self.turn_x, y @ self.turn_y
        quadratic = (u - self.goals[0]).square() - (v - self.goals[1]).square()
        return (0.5 * quadratic + (u @ self.mix) * v).sum(1)

    def value(self, x: Tensor, y: Tensor) -> Tensor:
        return self.values(x, y).sum()

    def __call__(self) -> Tensor:
        return self.value(self.x, self.y)

    def point(self) -> Tensor:
        return torch.cat([self.x.detach(), self.y.detach()])


RATES = {"lr_x": 0.1, "lr_y": 0.1}


@pytest.mark.parametrize("method", [info.name for info in neada.methods()])
def test_steppers(method: str) -> None:
    known = next(info.options for info in neada.methods() if info.name == method)

    def run() -> Tensor:
        game = Game()
        options = {name: rate for name, rate in RATES.items() if name in known}
        stepper = make_stepper(method, Players([game.x], [game.y], tol=0.1), options)
        for _ in range(6):
            stepper.step(game)
            last = game()  # the region belongs to the user, who evaluates between the steps
        return torch.cat([game.point(), last.detach().expand(1, SIZE)])

    check(run)


@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("method", ["auto", "neada-adgd", "extragradient"])
def test_minimax(method: str, rowwise: bool) -> None:
    game = Game()

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return game.values(x, y) if rowwise else game.value(x, y)

    def run() -> Tensor:
        options = RATES if method == "extragradient" else {}
        start = torch.zeros(2 if rowwise else 1, SIZE)
        result = neada.minimax(
            *(fun, start, start),
            method=method,
            rowwise=rowwise,
            tol=0.02,
            max_calls=1000,
            options=options,
        )
        return torch.cat([result.x, result.y, torch.as_tensor(result.fun).reshape(-1, 1)], 1)

    check(run)


def test_minimize() -> None:
    game = Game()

    def run() -> Tensor:
        result = neada.minimize(
            lambda x: (x @ game.turn_x - game.goals[0]).square().sum(),
            torch.zeros(1, SIZE),
            inequality=lambda x: (x @ game.mix).sum() + 1.0,
            tol=0.1,
            max_calls=500,
        )
        return result.x

    check(run, same_sums=False)


# Optimizers.

# They measure the curvature along a tiny first step.
PROBES = ("adgd-mm20", "adgd-mm20lin", "hazan-kakade", "spg-probe")


@pytest.mark.parametrize("style", ["torch", "value"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_optimizers(case: Case, style: str) -> None:
    def run() -> Tensor:
        game = Game()
        optimizer = case.make([game.x], **case.kwargs)

        def loss() -> Tensor:
            return (game.x @ game.turn_x - game.goals[0]).square().sum()

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        values = []
        for _ in range(5):
            if style == "torch":
                optimizer.step(closure)
            else:
                optimizer.step(loss, value=closure().detach())
            values.append(loss().detach())
        if case.answer != "point":
            with optimizer.best() if case.answer == "best" else optimizer.averaged():
                values.append(loss().detach())
            values.append(loss().detach())
        return torch.cat([game.x.detach().flatten(), torch.stack(values)])

    check(run, resolved=case.name not in PROBES)


def test_parameter_free_sgd() -> None:
    def run() -> Tensor:
        game = Game()

        def closure() -> Tensor:
            value = (game.x @ game.turn_x - game.goals[0]).square().sum()
            value.backward()
            return value

        optim.parameter_free_sgd(closure, [game.x], max_calls=60, lr_eps=1e-3)
        return torch.cat([game.x.detach().flatten(), closure().detach()[None]])

    check(run)


# Objectives and attacks, of a network whose first layer is a product with the inputs.


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 16), nn.ELU(), nn.Linear(16, 4))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(12, SIZE), torch.arange(12) % 4


OBJECTIVES: dict[str, Callable[..., InputObjective]] = {
    "WRM": lambda model, **o: WRM(model, cross_entropy, 0.3, **o),
    "AdversarialTraining": lambda model, **o: AdversarialTraining(
        model, cross_entropy, 1.0, "l2", **o
    ),
    "TRADES": lambda model, **o: TRADES(model, cross_entropy, 1.0, "l2", **o),
}


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.5, maximize=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "torch optimizer": {"optimizer": sgd},
    "line search": {"optimizer": lambda params: optim.Backtracking(params, maximize=True)},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_training(name: str, options: str) -> None:
    inputs, targets = batch()

    def run() -> Tensor:
        model = network()
        torch.manual_seed(2)
        objective = OBJECTIVES[name](
            model, adversary=Adversary(stopping=FixedSteps(6), **OPTIONS[options])
        )
        x_optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        losses = [objective.step(x_optimizer, inputs, targets).loss for _ in range(3)]
        worst = objective.perturb(inputs, targets)
        last = objective.loss(worst).item()
        by_hand = cross_entropy(model(worst.inputs).float(), targets).item()
        return torch.tensor([*losses, last, by_hand, worst.perturbation])

    check(run, same_sums=name != "TRADES")


@pytest.mark.parametrize("regularizer", ["kl", "chi2", None])
@pytest.mark.parametrize("make_x", [torch.optim.SGD, optim.Backtracking])
def test_group_objective(make_x: Any, regularizer: Any) -> None:
    inputs, targets = batch()

    def run() -> Tensor:
        model = network()
        objective = GroupDRO(model, cross_entropy, 4, regularizer=regularizer)
        x_optimizer = make_x(model.parameters())
        losses = [objective.step(x_optimizer, inputs, targets, targets).loss for _ in range(3)]
        return torch.cat([torch.tensor(losses), objective.weights.detach()])

    check(run)


ATTACKS: dict[str, Callable[..., Tensor]] = {
    "fgsm": attacks.fgsm,
    "pgd": attacks.pgd,
    "apgd": attacks.apgd,
    "square": square,
    "ensemble": lambda *batch, **options: attack_in_turn(*batch, **options).points,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(name: str) -> None:
    inputs, targets = batch()
    options = {} if name in ("fgsm", "square") else {"num_steps": 10}
    options |= {"num_queries": 30} if name in ("square", "ensemble") else {}

    def run() -> Tensor:
        model = network()
        for _ in range(2):
            found = ATTACKS[name](model, inputs, targets, 0.2, norm="l2", **options)
            loss = cross_entropy(model(found).float(), targets)
            with torch.no_grad():  # the second attack is on other parameters
                model[0].weight.neg_()
        return loss.detach()

    check(run)
