"""NaN and Inf in a value or a gradient: `NonFiniteGradient`, and the model is as before.

One table: every stepper and objective, by position (value, x gradient, y gradient). What y and its
optimizer hold after the error is unspecified but finite, and training continues from there.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from neada import NonFiniteGradient, optim, robust, sets, steppers
from neada.stopping import FixedSteps, InnerSteps
from optimizers import CASES, Case, make
from test_steppers import MAKE, game, nested, pair, start

BAD = (math.nan, -math.inf)


class Fault:
    """Replaces a value or a gradient by NaN or Inf in one evaluation.

    Attributes:
        num_calls: Evaluations since the fault was set.
    """

    def __init__(self) -> None:
        self.set()

    def set(self, kind: str = "", at: int = 0, bad: float = 0.0) -> None:
        self.kind, self.at, self.bad, self.num_calls = kind, at, bad, 0

    def count(self) -> None:
        self.num_calls += 1

    def gradient(self, kind: str, tensor: Tensor) -> Tensor:
        passed = tensor * 1.0
        if self.kind == kind and self.num_calls == self.at and passed.requires_grad:
            passed.register_hook(lambda g: torch.full_like(g, self.bad))  # type: ignore[no-untyped-call]
        return passed

    def value(self, tensor: Tensor) -> Tensor:
        return tensor + self.bad if self.kind == "value" and self.num_calls == self.at else tensor


@dataclass
class Training:
    """Something that takes steps; `x` holds the model's parameters, `state` what must be finite."""

    owner: Any
    step: Callable[[], Any]
    x: list[Tensor]
    state: Callable[[], Any]
    fault: Fault


def numbers_in(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, Iterable) and not isinstance(thing, Tensor | str | bytes):
        for part in thing:
            yield from numbers_in(part)
    elif isinstance(thing, Tensor | float):
        yield thing


def is_finite(thing: Any) -> bool:
    return all(bool(torch.as_tensor(number).isfinite().all()) for number in numbers_in(thing))


def check(make: Callable[[], Training], kind: str, bad: float, *, moves_first: bool = False) -> int:
    """Spoil every evaluation of the third step, one at a time.

    Returns:
        How many of them raised.
    """
    twin = make()
    for _ in range(2):
        twin.step()
    twin.fault.set()
    twin.step()
    num, num_raised = twin.fault.num_calls, 0
    for at in range(1, num + 1):
        training = make()
        for _ in range(2):
            training.step()
        before = [x.detach().clone() for x in training.x]
        training.fault.set(kind, at, bad)
        try:
            training.step()
        except NonFiniteGradient:
            num_raised += 1
            if not moves_first:
                assert all(map(torch.equal, training.x, before)), f"evaluation {at} of {num}"
        assert is_finite([training.x, training.state()]), f"evaluation {at} of {num}"
        training.fault.set()
        for _ in range(2):
            training.step()
        assert is_finite([training.x, training.state()])
        assert not all(map(torch.equal, training.x, before))
    return num_raised


# Steppers.


def rows_of(optimizer: Any) -> Callable[..., steppers.Stepper]:
    """Three games at once."""
    return lambda x, y: steppers.NeAda(
        optim.GeneralizedAdaGrad(x, rowwise=True),
        optimizer(y, maximize=True, rowwise=True),
        rowwise=True,
    )


STEPPERS: dict[str, Callable[..., steppers.Stepper]] = {
    **MAKE,
    "simultaneous Adam": pair(steppers.Simultaneous, Adam),
    "simultaneous line search": lambda x, y: steppers.Simultaneous(
        optim.Backtracking(x), optim.Backtracking(y, maximize=True)
    ),
    "simultaneous COCOB": lambda x, y: steppers.Simultaneous(
        optim.COCOB(x), optim.COCOB(y, maximize=True)
    ),
    "alternating line search": lambda x, y: steppers.Alternating(
        optim.Backtracking(x), optim.Backtracking(y, maximize=True)
    ),
    "NeAda, line search of x": nested(optim.Backtracking, optim.SPG, InnerSteps),
    "NeAda, rows": rows_of(optim.AdGD),
    "NeAda, rows, line search": rows_of(optim.Backtracking),
    "NeAda, in sets": lambda x, y: steppers.NeAda(
        optim.GeneralizedAdaGrad(x, constraint=sets.Box(-2.0, 2.0)),
        optim.AdGD(y, maximize=True, constraint=sets.L2Ball(0.4)),
    ),
}
# x has moved when the gradient of y is evaluated.
X_MOVES_FIRST = {name for name in STEPPERS if name.startswith("alternating") and "yx" not in name}


def stepper_training(name: str, dtype: torch.dtype = torch.float64) -> Training:
    x, y = (p.detach().to(dtype).requires_grad_() for p in start())
    rowwise = "rows" in name
    if rowwise:
        x, y = (
            torch.stack([p.detach() * (1.0 + i) for i in range(3)]).requires_grad_() for p in (x, y)
        )
    stepper, fault = STEPPERS[name]([x], [y]), Fault()

    def closure() -> Tensor:
        fault.count()
        here, there = fault.gradient("x", x), fault.gradient("y", y)
        if rowwise:
            return fault.value(torch.stack([game(here[i], there[i]) for i in range(3)]))
        return fault.value(game(here, there))

    return Training(stepper, lambda: stepper.step(closure), [x], lambda: y, fault)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("kind", ["value", "x", "y"])
@pytest.mark.parametrize("name", STEPPERS)
def test_stepper(name: str, kind: str, bad: float) -> None:
    moves_first = name in X_MOVES_FIRST
    num_raised = check(partial(stepper_training, name), kind, bad, moves_first=moves_first)
    assert kind == "value" or num_raised


# Objectives.

NUM, SIZE = 12, 5
ADAM = robust.Adversary(
    optimizer=partial(Adam, lr=0.05, maximize=True), stopping=FixedSteps(3), per_sample=True
)


class Network(nn.Module):
    """Its outputs, the gradient of one parameter or that of the inputs can be spoiled."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(SIZE, 8), nn.ELU(), nn.Linear(8, 3))
        self.shift = nn.Parameter(torch.zeros(3))
        self.fault = fault

    def forward(self, inputs: Tensor) -> Tensor:
        self.fault.count()
        outputs = self.layers(self.fault.gradient("y", inputs))
        return self.fault.value(outputs + self.fault.gradient("x", self.shift))


OBJECTIVES: dict[str, Callable[[nn.Module], Any]] = {
    "WRM": lambda m: robust.WRM(m, cross_entropy, 1.3),
    "WRM, together": lambda m: robust.WRM(
        m, cross_entropy, 1.3, adversary=robust.Adversary(per_sample=False)
    ),
    "WRM, Adam": lambda m: robust.WRM(m, cross_entropy, 1.3, adversary=ADAM),
    "WRM, kept": lambda m: robust.WRM(m, cross_entropy, 1.3, adversary=replace(ADAM, start="kept")),
    "adversarial": lambda m: robust.AdversarialTraining(m, cross_entropy, 0.1, bounds=(0.0, 1.0)),
    "TRADES": lambda m: robust.TRADES(m, cross_entropy, 0.1),
    "group": lambda m: robust.GroupDRO(m, cross_entropy, 3),
    "group, chi2": lambda m: robust.GroupDRO(m, cross_entropy, 3, regularizer="chi2", strength=0.1),
    "group, none": lambda m: robust.GroupDRO(m, cross_entropy, 3, regularizer=None),
}
X_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": partial(Adam, lr=0.01),
    "AdaGrad": optim.GeneralizedAdaGrad,
    "COCOB": optim.COCOB,
    "line search": optim.Backtracking,
}


def objective_training(name: str, x_name: str) -> Training:
    fault = Fault()
    model = Network(fault)
    objective = OBJECTIVES[name](model)
    x_optimizer = X_OPTIMIZERS[x_name](model.parameters())
    inputs = torch.rand(NUM, SIZE, generator=torch.Generator().manual_seed(1))
    targets = inputs[:, :3].argmax(1)
    side = [targets] if name.startswith("group") else [torch.arange(NUM)] if "kept" in name else []

    def step() -> None:
        torch.manual_seed(2)
        objective.step(x_optimizer, inputs, targets, *side)

    def state() -> Any:
        return [objective.state_dict(), x_optimizer.state_dict()["state"]]

    return Training(objective, step, list(model.parameters()), state, fault)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("name", "x_name", "kind"),
    [
        (name, x_name, kind)
        for name, x_name in (
            *((name, "Adam") for name in OBJECTIVES),
            *(("WRM", name) for name in X_OPTIMIZERS if name != "Adam"),
        )
        for kind in ("value", "x", "y")
        if kind != "y" or not name.startswith("group")  # the gradient of the weights is the value
    ],
)
def test_objective(name: str, x_name: str, kind: str, bad: float) -> None:
    assert check(partial(objective_training, name, x_name), kind, bad)


# A scale that is too large.

TRAININGS: dict[str, Callable[[], Training]] = {
    **{name: partial(stepper_training, name, torch.float32) for name in STEPPERS},
    **{
        name: partial(objective_training, name, "Adam")
        for name in OBJECTIVES
        if not name.startswith("group")
    },
}


@pytest.mark.parametrize("name", TRAININGS)
def test_an_overflow_of_the_scale_is_not_a_step(name: str) -> None:
    """The scale is infinite for the third step; then it is a power of two, which is exact."""
    training, plain = TRAININGS[name](), TRAININGS[name]()
    training.owner.grad_scaler = scaler = GradScaler("cpu", init_scale=2.0**10)
    for _ in range(2):
        training.step()
        plain.step()
    assert all(map(torch.equal, training.x, plain.x))
    scaler.update(math.inf)
    with pytest.raises(NonFiniteGradient):
        training.step()
    assert all(map(torch.equal, training.x, plain.x))
    assert is_finite([training.x, training.state()])
    scaler.update(2.0**4)
    for _ in range(2):
        training.step()
    assert is_finite([training.x, training.state()])
    assert not all(map(torch.equal, training.x, plain.x))


# Finite gradients whose squares overflow.


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name != "kt"],  # has to be told a bound of the norm
    ids=lambda case: case.name,
)
def test_optimizer_raises_or_takes_an_entry_whose_square_overflows(case: Case, first: int) -> None:
    w = torch.zeros(6, requires_grad=True)
    optimizer = make(case, [w])

    def evaluate() -> Tensor:
        return ((w - 1.0) ** 2).sum()

    def step(large: float = 0.0) -> None:
        w.grad = torch.autograd.grad(evaluate(), w)[0]
        w.grad[1] += large
        optimizer.step(evaluate, value=evaluate().detach())  # type: ignore[call-arg]

    for _ in range(first):
        step()
    before = w.detach().clone()
    try:
        step(1e25)
    except NonFiniteGradient:
        assert torch.equal(w, before)
    assert is_finite([w, optimizer.state_dict()["state"]])
    step()
    assert is_finite([w, optimizer.state_dict()["state"]])
