"""A step that meets a number which is not finite changes nothing: every stepper, every objective.

The judge is a picture of every bit of state, taken by walking through the objects. Faults are put
into every evaluation of a step; afterwards the step with good numbers is that of an untouched twin.
"""

import math
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from neada import optim, robust, sets, steppers
from neada.data import Dataset
from neada.inner import InnerOptions
from neada.steppers.quasi_newton import QuasiNewtonNeAda
from neada.stopping import FixedSteps, InnerSteps
from neada.tensors import NonFiniteGradient
from neada.training import TrainConfig
from neada.training.players import make_game
from optimizers import CASES, Case, make
from test_steppers import MAKE, game, nested, pair, start

BAD = (math.nan, math.inf, -math.inf)


def picture(thing: Any, seen: dict[int, int] | None = None) -> Any:
    """Every bit of what an object holds, `.grad` and functions aside."""
    seen = {} if seen is None else seen
    if isinstance(thing, bool | int | float | str | type(None) | Path | torch.dtype):
        return repr(thing)
    if isinstance(thing, Tensor):
        content = thing.detach().cpu().contiguous()
        return (str(content.dtype), tuple(content.shape), content.numpy().tobytes())
    if isinstance(thing, np.ndarray):
        return (str(thing.dtype), thing.shape, thing.tobytes())
    if isinstance(thing, torch.Generator):
        return thing.get_state().numpy().tobytes()
    if id(thing) in seen:
        return ("the one of before", seen[id(thing)])
    seen[id(thing)] = len(seen)
    if isinstance(thing, dict):
        keys = [repr(key) if isinstance(key, str) else str(type(key)) for key in thing]
        return list(zip(keys, [picture(part, seen) for part in thing.values()], strict=True))
    if isinstance(thing, list | tuple):
        return [picture(part, seen) for part in thing]
    is_function = isinstance(thing, types.FunctionType | types.MethodType | types.GeneratorType)
    if is_function or not hasattr(thing, "__dict__"):
        return str(type(thing))
    return (str(type(thing)), picture(vars(thing), seen))


class Fault:
    """Breaks one evaluation, by its number.

    Attributes:
        calls: Evaluations since the fault was set.
    """

    def __init__(self) -> None:
        self.set(0, "", 0.0)

    def set(self, at: int, kind: str, bad: float) -> None:
        self.calls, self.at, self.kind, self.bad = 0, at, kind, bad

    def strikes(self) -> str:
        """The kind of the fault, if it is due in the evaluation that begins now."""
        self.calls += 1
        return self.kind if self.calls == self.at else ""

    def through(self, tensor: Tensor) -> Tensor:
        """The same tensor, whose gradient is bad."""
        passed = tensor * 1.0
        if passed.requires_grad:
            passed.register_hook(lambda g: torch.full_like(g, self.bad))  # type: ignore[no-untyped-call]
        return passed


@dataclass
class World:
    """Something that steps, all of its state, and what must stay finite in it."""

    step: Callable[[int], Any]
    state: list[Any]
    players: list[Tensor]
    fault: Fault
    folder: Path | None = None

    def picture(self) -> Any:
        files = [] if self.folder is None else sorted(self.folder.rglob("*"))
        return picture(self.state), [(p.name, p.read_bytes()) for p in files if p.is_file()]


def injections(
    make: Callable[[], World], kinds: tuple[str, ...], first: int
) -> Iterator[tuple[str, bool]]:
    """Break every evaluation of a step in every way; yields the kind, and whether it raised."""
    twin = make()
    for number in range(first):
        twin.step(number)
    twin.fault.set(0, "", 0.0)
    twin.step(first)
    num_evaluations, after = twin.fault.calls, twin.picture()
    world: World | None = None
    for kind in kinds:
        for at in range(1, num_evaluations + 1):
            for bad in BAD:
                if world is None:
                    world = make()
                    for number in range(first):
                        world.step(number)
                before = world.picture()
                world.fault.set(at, kind, bad)
                try:
                    world.step(first)
                except FloatingPointError:
                    where = f"{kind} of {bad} in evaluation {at} of {num_evaluations}"
                    assert world.picture() == before, where
                    yield kind, True
                    if bad == BAD[-1] or at == num_evaluations:
                        world.fault.set(0, "", 0.0)
                        world.step(first)
                        assert world.picture() == after, where
                        world = None
                else:
                    assert all(bool(p.isfinite().all()) for p in world.players)
                    yield kind, False
                    world = None


# Steppers.


def rows_of(optimizer: Any, **more: Any) -> Callable[..., steppers.Stepper]:
    """Three games at once."""

    def make(x: list[Tensor], y: list[Tensor]) -> steppers.Stepper:
        return steppers.NeAda(
            optim.GeneralizedAdaGrad(x, rowwise=True),
            optimizer(y, maximize=True, rowwise=True, **more),
            rowwise=True,
        )

    return make


STEPPERS: dict[str, Callable[..., steppers.Stepper]] = {
    **MAKE,
    "simultaneous Adam": pair(steppers.Simultaneous, Adam),
    "simultaneous line search": lambda x, y: steppers.Simultaneous(
        optim.Backtracking(x), optim.Backtracking(y, maximize=True)
    ),
    "simultaneous Polyak": lambda x, y: steppers.Simultaneous(
        optim.Polyak(x, f_bound=-9.0), Adam(y, 0.1, maximize=True)
    ),
    "simultaneous COCOB": lambda x, y: steppers.Simultaneous(
        optim.COCOB(x), optim.COCOB(y, maximize=True)
    ),
    "alternating Adam xy": pair(steppers.Alternating, Adam, order="xy"),
    "alternating Adam yx": pair(steppers.Alternating, Adam, order="yx"),
    "alternating line search": lambda x, y: steppers.Alternating(
        optim.Backtracking(x), optim.Backtracking(y, maximize=True)
    ),
    "NeAda, line search of x": nested(optim.Backtracking, optim.SPG, InnerSteps),
    "NeAda, deterministic": nested(Adam, partial(Adam, lr=0.1), InnerSteps, deterministic=True),
    "NeAda, rows": rows_of(optim.AdGD),
    "NeAda, rows, line search": rows_of(optim.Backtracking),
    "NeAda, in sets": lambda x, y: steppers.NeAda(
        optim.GeneralizedAdaGrad(x, constraint=sets.Box(-2.0, 2.0)),
        optim.AdGD(y, maximize=True, constraint=sets.L2Ball(0.4)),
    ),
    "QuasiNewtonNeAda": lambda x, y: QuasiNewtonNeAda(x, y, 1e-10),
}


def stepper_world(name: str) -> World:
    x, y = start()
    rowwise = "rows" in name
    if rowwise:
        x, y = (
            torch.stack([p.detach() * (1.0 + i) for i in range(3)]).requires_grad_() for p in (x, y)
        )
    stepper, fault = STEPPERS[name]([x], [y]), Fault()

    def closure() -> Tensor:
        kind = fault.strikes()
        here = fault.through(x) if kind == "x" else x
        there = fault.through(y) if kind == "y" else y
        if rowwise:
            value = torch.stack([game(here[i], there[i]) for i in range(3)])
        else:
            value = game(here, there)
        return value + fault.bad if kind == "value" else value

    return World(lambda number: stepper.step(closure), [stepper, x, y], [x, y], fault)


@pytest.mark.parametrize("name", STEPPERS)
def test_a_stepper_is_as_it_was_and_goes_on_like_its_twin(name: str) -> None:
    # Later steps of the generator behind QuasiNewtonNeAda begin anew, see its docstring.
    for first in (0,) if name == "QuasiNewtonNeAda" else (0, 2):
        seen = list(injections(partial(stepper_world, name), ("value", "x", "y"), first))
        # Where f is finite, that method takes a bad x gradient for a slope that it cannot use.
        for kind in "y" if name == "QuasiNewtonNeAda" else "xy":
            assert (kind, True) in seen, f"no gradient of {kind} was refused"


# Objectives and methods of training.

NUM, SIZE = 24, 5


def batch(number: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + number % 2)
    inputs = torch.rand(NUM // 2, SIZE, generator=generator)
    ids = torch.arange(NUM // 2) + NUM // 2 * (number % 2)
    return inputs, inputs[:, :3].argmax(1), ids


class Faulty(nn.Module):
    """Passes on what it is given, but for a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.find = lambda: fault  # a function is in no picture

    def forward(self, outputs: Tensor) -> Tensor:
        fault = self.find()
        kind = fault.strikes()
        if kind == "gradient":
            return fault.through(outputs)
        return outputs * fault.bad if kind == "value" else outputs


def network(fault: Fault) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.ELU(), nn.Linear(8, 3), Faulty(fault)]
    return nn.Sequential(*layers)


LOSS = functional.cross_entropy
adam_y = partial(Adam, lr=0.05, maximize=True)
store = partial(robust.PerturbationStore, NUM, (SIZE,))
kept = InnerOptions(keep="everything")


def drawing(objective: Any) -> Any:
    objective.generator = torch.Generator().manual_seed(5)
    return objective


OBJECTIVES: dict[str, Callable[[nn.Module], Any]] = {
    "WRM": lambda m: robust.WRM(m, LOSS, 1.3),
    "WRM, statistics of the batch": lambda m: robust.WRM(
        m, LOSS, 1.3, y_optimizer=adam_y, stopping=FixedSteps(2), batch_norm="batch"
    ),
    "WRM, store": lambda m: robust.WRM(m, LOSS, 1.3, store=store()),
    "WRM, kept": lambda m: robust.WRM(
        m, LOSS, 1.3, y_optimizer=adam_y, stopping=FixedSteps(3), inner=kept
    ),
    "WRM, reused": lambda m: robust.WRM(
        *(m, LOSS, 1.3),
        y_optimizer=adam_y,
        stopping=FixedSteps(2),
        inner=InnerOptions(reuse_last=True),
        store=store(),
    ),
    "adversarial": lambda m: robust.AdversarialTraining(m, LOSS, 0.1, bounds=(0.0, 1.0)),
    "adversarial, random": lambda m: drawing(
        robust.AdversarialTraining(m, LOSS, 0.1, "l2", inner=InnerOptions(start="random"))
    ),
    "TRADES": lambda m: drawing(robust.TRADES(m, LOSS, 0.1)),
    "group": lambda m: robust.GroupDRO(m, LOSS, 3),
    "group, chi2": lambda m: robust.GroupDRO(m, LOSS, 3, regularizer="chi2", strength=0.1),
    "group, none": lambda m: robust.GroupDRO(m, LOSS, 3, regularizer=None),
    "group, Adam": lambda m: robust.GroupDRO(
        m, LOSS, 3, y_optimizer=lambda y: optim.AdaptiveSGD(y, maximize=True, **SIMPLEX)
    ),
}
SIMPLEX: dict[str, Any] = {"constraint": sets.Simplex(), "lr": 0.1}
X_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": partial(Adam, lr=0.01),
    "AdaGrad": optim.GeneralizedAdaGrad,
    "COCOB": optim.COCOB,
    "line search": optim.Backtracking,
}


def objective_world(name: str, x_name: str = "Adam", folder: Path | None = None) -> World:
    fault = Fault()
    model = network(fault)
    objective = OBJECTIVES[name](model)
    if folder is not None:
        for path in folder.iterdir():
            path.unlink()
        objective.store = store(path=folder / "perturbations.npy")
    x_optimizer = X_OPTIMIZERS[x_name](model.parameters())

    def step(number: int) -> None:
        inputs, targets, ids = batch(number)
        side = ids if getattr(objective, "store", None) is not None else None
        if objective.side == "groups":
            side = targets
        objective.step(x_optimizer, inputs, targets, side)

    players = [*model.parameters(), *model.buffers()]
    return World(step, [model, objective, x_optimizer], players, fault, folder)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_is_as_it_was_and_goes_on_like_its_twin(name: str) -> None:
    for first in (0, 2):
        seen = list(injections(partial(objective_world, name), ("value", "gradient"), first))
        assert {("value", True), ("gradient", True)} <= set(seen)


@pytest.mark.parametrize("x_name", X_OPTIMIZERS)
@pytest.mark.parametrize("name", ["WRM, store", "group, chi2", "group, none"])
def test_it_is_so_with_every_kind_of_x_optimizer(name: str, x_name: str) -> None:
    make = partial(objective_world, name, x_name)
    seen = list(injections(make, ("value", "gradient"), 2))
    assert {("value", True), ("gradient", True)} <= set(seen)


@pytest.mark.parametrize("name", ["WRM, store", "WRM, reused"])
def test_a_store_on_disk_is_as_it_was(name: str, tmp_path: Path) -> None:
    make = partial(objective_world, name, folder=tmp_path)
    twin = make()
    twin.step(0)
    twin.fault.set(0, "", 0.0)
    twin.step(1)
    for at in range(1, twin.fault.calls + 1):
        world = make()
        world.step(0)
        before = world.picture()
        world.fault.set(at, "gradient", math.nan)
        with pytest.raises(NonFiniteGradient):
            world.step(1)
        assert world.picture() == before


METHODS: dict[str, dict[str, Any]] = {
    "neada": {},
    "free": {"method": "free"},
    "tiada": {"method": "tiada"},
    "tiada, trades": {"method": "tiada", "objective": "trades"},
    "tiada, group": {"method": "tiada", "objective": "group"},
    "group": {"objective": "group"},
    "released": {"stop": "released"},
}


def data() -> Dataset:
    parts = [batch(number) for number in (0, 1)]
    inputs, targets = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    return Dataset("own", inputs, targets, inputs, targets, 3, (0.0, 1.0))


def game_world(name: str) -> World:
    fault = Fault()
    model = network(fault)
    played = make_game(TrainConfig(**METHODS[name]), model, data())
    played.open(None)

    def step(number: int) -> None:
        inputs, targets, ids = batch(number)
        played.step(inputs, targets, ids, targets)

    players = [*model.parameters(), *model.buffers()]
    return World(step, [model, played], players, fault)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_training_is_as_it_was_and_goes_on_like_its_twin(name: str) -> None:
    for first in (0, 2):
        seen = list(injections(partial(game_world, name), ("value", "gradient"), first))
        assert {("value", True), ("gradient", True)} <= set(seen)


# What a fault in one evaluation does not show.


def narrow_network() -> nn.Sequential:
    """Its batch norm comes first, so that it sees the variance of the inputs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(SIZE), nn.Linear(SIZE, 3))


@pytest.mark.parametrize("name", ["WRM", "WRM, reused", "TRADES", "group", "group, none", "tiada"])
def test_statistics_that_overflow_behind_a_finite_loss_are_refused(name: str) -> None:
    model = narrow_network()
    inputs, targets, ids = batch(0)
    inputs = 1e30 * inputs
    assert bool(LOSS(narrow_network()(inputs), targets).isfinite())
    x_optimizer = Adam(model.parameters(), 0.01)
    if name == "tiada":
        training = make_game(
            TrainConfig(method="tiada", objective="group"),
            model,
            Dataset("wide", inputs, targets, inputs, targets, 3),
        )
        objective, step = training, partial(training.step, inputs, targets, ids, targets)
    else:
        objective = OBJECTIVES[name](model)
        side = targets if objective.side == "groups" else ids if objective.store else None
        step = partial(objective.step, x_optimizer, inputs, targets, side)
    before = picture([model, objective, x_optimizer])
    with pytest.raises(NonFiniteGradient, match="running statistic"):
        step()
    assert picture([model, objective, x_optimizer]) == before


def test_trial_points_leave_no_statistics_that_are_not_finite() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIZE, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    objective = robust.WRM(model, LOSS, 1.3, stopping=FixedSteps(1))
    x_optimizer = optim.Backtracking(model.parameters(), lr=1e30)  # far out at first
    inputs, targets, _ = batch(0)
    before = [p.detach().clone() for p in model.parameters()]
    objective.step(x_optimizer, inputs, targets)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(bool(b.isfinite().all()) for b in model.buffers())


def test_a_buffer_that_was_infinite_before_is_no_fault_and_a_replaced_one_goes_back() -> None:
    class Masked(nn.Module):
        """Has a mask with infinities, and a mean that it replaces with every evaluation."""

        mask: Tensor
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(SIZE, 3)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, -math.inf]))
            self.register_buffer("mean", torch.zeros(SIZE))

        def forward(self, inputs: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
            return self.layer(inputs) + self.mask.clamp_min(-9.0)

    torch.manual_seed(0)
    model = Masked()
    objective = robust.GroupDRO(model, LOSS, 3)
    x_optimizer = Adam(model.parameters(), 0.01)
    inputs, targets, _ = batch(0)
    objective.step(x_optimizer, inputs, targets, targets)
    before = picture(model)
    with pytest.raises(NonFiniteGradient):
        objective.step(x_optimizer, inputs * math.nan, targets, targets)
    assert picture(model) == before


@pytest.mark.parametrize("keeps", [False, True])
def test_an_adversary_whose_last_step_overflows_leaves_the_store_and_the_model(keeps: bool) -> None:
    def steep(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e3 * LOSS(outputs, targets, reduction="none")

    model = network(Fault())
    objective = robust.WRM(
        *(model, steep, 1.3),
        y_optimizer=lambda y: torch.optim.SGD(y, lr=1e38, maximize=True),
        stopping=FixedSteps(1),
        inner=InnerOptions(reuse_last=keeps),
        store=store(),
    )
    x_optimizer = Adam(model.parameters(), 0.01)
    before = picture([model, objective, x_optimizer])
    with pytest.raises(NonFiniteGradient):
        objective.step(x_optimizer, *batch(0))
    assert picture([model, objective, x_optimizer]) == before


def climbing(rate: float, **more: Any) -> Callable[[nn.Module], robust.WRM]:
    """An adversary of one long step, with a store."""
    return lambda model: robust.WRM(
        *(model, LOSS, 1e-3),
        y_optimizer=lambda y: torch.optim.SGD(y, lr=rate, maximize=True),
        stopping=FixedSteps(1),
        **more,
    )


REUSED = {"inner": InnerOptions(reuse_last=True)}


@pytest.mark.parametrize("more", [{}, REUSED])
def test_a_store_of_a_narrow_dtype_is_a_step_that_is_refused(more: dict[str, Any]) -> None:
    model = network(Fault())
    objective = climbing(1e8, store=store(dtype=torch.float16), **more)(model)
    x_optimizer = Adam(model.parameters(), 0.01)
    steps: list[Callable[..., Any]] = [partial(objective.step, x_optimizer), objective.perturb]
    for step in steps:
        before = picture([model, objective, x_optimizer])
        with pytest.raises(NonFiniteGradient, match=r"torch\.float16, the dtype of the store"):
            step(*batch(0))
        assert picture([model, objective, x_optimizer]) == before
    wide = climbing(1e8, store=store(), **more)(network(Fault()))
    wide.step(Adam(wide.model.parameters(), 0.01), *batch(0))
    assert 65504 < wide.store.get(batch(0)[2]).abs().max() < math.inf


PERSISTENT = [
    (method, objective)
    for objective in ("wrm", "adversarial", "trades")
    for method in ("neada", "gdmax", "free", "tiada")
]


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize(("method", "objective"), PERSISTENT)
def test_perturbations_that_cannot_be_stored_undo_the_step_of_both_players(
    method: str, objective: str, where: Any, tmp_path: Path
) -> None:
    far: dict[str, Any] = {"gamma": 1e-9} if objective == "wrm" else {"eps": 1e6}
    if method == "tiada":
        far["lr_y"] = 1e9
    elif objective == "wrm" and method != "free":
        far |= {"y_optimizer": "adam", "lr_y": 1e6}
    config = TrainConfig(method=method, objective=objective, warm_start=where, clip=False, **far)
    model = network(Fault())
    played = make_game(config, model, data())
    played.open(tmp_path)
    played.step(*batch(0), batch(0)[1])
    path = tmp_path / "narrow.npy" if where == "disk" else None
    played.objective.store = robust.ShardedStore(NUM, (SIZE,), torch.float16, path)
    played.settle()
    world = World(lambda number: None, [model, played], [], Fault(), tmp_path)
    before = world.picture()
    with pytest.raises(NonFiniteGradient, match="the dtype of the store"):
        played.step(*batch(1), batch(1)[1])
    assert world.picture() == before


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_perturbations_that_overflow_undo_the_step_of_both_players(
    where: Any, tmp_path: Path
) -> None:
    model = network(Fault())
    config = TrainConfig(method="tiada", warm_start=where, clip=False)
    object.__setattr__(config, "lr_y", 1e39)  # no config takes a rate that overflows at once
    played = make_game(config, model, data())
    played.open(tmp_path)
    played.settle()
    world = World(lambda number: None, [model, played], [], Fault(), tmp_path)
    before = world.picture()
    with pytest.raises(NonFiniteGradient, match="the adversary overflows"):
        played.step(*batch(1), batch(1)[1])
    assert world.picture() == before


def test_an_update_that_overflows_by_itself_is_found_by_the_next_step() -> None:
    """The promise ends there: the gradient was finite, and copies of large models are not made."""
    x = torch.full((2,), 1e10, requires_grad=True)
    y = torch.ones(2, requires_grad=True)
    stepper = steppers.NeAda(
        torch.optim.SGD([x], lr=1e30), Adam([y], 0.1, maximize=True), FixedSteps(2)
    )

    def closure() -> Tensor:
        return (x * x + x * y - y * y).sum()

    stepper.step(closure)
    assert bool(x.isinf().all())
    before = picture([stepper, x, y])
    with pytest.raises(NonFiniteGradient):
        stepper.step(closure)
    assert picture([stepper, x, y]) == before


# Gradients that are finite, and whose squares are not.


def is_finite_in(thing: Any) -> bool:
    """Whether no number in nested containers is infinite or undefined."""
    if isinstance(thing, dict):
        return all(map(is_finite_in, thing.values()))
    if isinstance(thing, list | tuple):
        return all(map(is_finite_in, thing))
    return bool(thing.isfinite().all()) if isinstance(thing, Tensor) else thing not in BAD[1:]


# KT is told a bound on the norm, and may go bankrupt beyond it.
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "kt"], ids=lambda c: c.name
)
@pytest.mark.parametrize("first", [0, 2])
def test_an_optimizer_refuses_an_entry_that_it_cannot_square_or_takes_it(
    case: Case, first: int
) -> None:
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
    before = picture([w, optimizer.state])
    try:
        step(1e25)
    except NonFiniteGradient:
        assert picture([w, optimizer.state]) == before
    else:
        here = w[1].item()
        step(-1e25)
        assert is_finite_in([w, optimizer.state, optimizer.state_dict()["state"]])
        # Others have one step for all entries, which a large one makes as small as it likes.
        assert case.make is not optim.COCOB or w[1].item() != here


COORDINATES: dict[str, Callable[..., steppers.Stepper]] = {
    **{name: MAKE[name] for name in ("TiAda coordinate", "TiAdaAdam", "TiAdaAdam AMSGrad")},
    **{name: MAKE[name] for name in ("AdaGDA", "VRAdaGDA", "simultaneous AMSGrad", "NeAda Adam")},
    "simultaneous AdaGrad": pair(
        steppers.Simultaneous, partial(optim.GeneralizedAdaGrad, scope="coordinate")
    ),
    "alternating AdaGrad": pair(
        steppers.Alternating, partial(optim.GeneralizedAdaGrad, scope="coordinate")
    ),
    "simultaneous COCOB": STEPPERS["simultaneous COCOB"],
}


@pytest.mark.parametrize("name", COORDINATES)
@pytest.mark.parametrize("player", ["x", "y"])
@pytest.mark.parametrize("first", [0, 2])
def test_a_stepper_refuses_an_entry_that_it_cannot_square_or_takes_it(
    name: str, player: str, first: int
) -> None:
    x, y = (p.detach().float().requires_grad_() for p in start())
    stepper = COORDINATES[name]([x], [y])
    moved = x if player == "x" else y
    large = 0.0

    def closure() -> Tensor:
        value = game(x.double(), y.double()).float()
        return value + large * (moved[0] - moved[0].detach())

    for _ in range(first):
        stepper.step(closure)
    before, large = picture([stepper, x, y]), 1e25
    try:
        stepper.step(closure)
    except NonFiniteGradient:
        assert picture([stepper, x, y]) == before
    else:
        here, large = moved[0].item(), -1e25
        stepper.step(closure)
        assert is_finite_in([x, y, stepper.state_dict()])
        assert moved[0].item() != here


def test_a_row_at_rest_may_have_entries_that_cannot_be_squared() -> None:
    x, y = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
    large = torch.tensor([[1e25, 0.0], [0.0, 0.0]])
    pairs = partial(optim.GeneralizedAdaGrad, scope="coordinate", rowwise=True)
    for stepper in (
        steppers.TiAda([x], [y], scope="coordinate", rowwise=True),
        steppers.Simultaneous(pairs([x]), pairs([y], maximize=True), rowwise=True),
        steppers.Simultaneous(
            optim.AdaptiveSGD([x]), optim.AdaptiveSGD([y], maximize=True), rowwise=True
        ),
    ):

        def closure() -> Tensor:
            return (x * x + x * y - y * y + large * (x - x.detach())).sum(1)

        with pytest.raises(NonFiniteGradient):
            stepper.step(closure)
        stepper.rest(torch.tensor([True, False]))
        here = x.detach().clone()
        stepper.step(closure)
        assert torch.equal(x[0], here[0]) and not torch.equal(x[1], here[1])
        assert is_finite_in([x, y])


# Other things that were accepted without a word.


def test_an_optimizer_of_another_model_is_refused() -> None:
    inputs, targets, _ = batch(0)
    other = Adam(network(Fault()).parameters(), 0.01)
    for name in ("WRM", "adversarial", "TRADES", "group", "group, none"):
        objective = OBJECTIVES[name](network(Fault()))
        side = targets if objective.side == "groups" else None
        with pytest.raises(ValueError, match="no parameter of this model"):
            objective.step(other, inputs, targets, side)


def test_an_optimizer_of_a_part_of_the_model_is_accepted() -> None:
    model = network(Fault())
    inputs, targets, _ = batch(0)
    OBJECTIVES["WRM"](model).step(Adam(model[3].parameters(), 0.01), inputs, targets)


def test_groups_of_none_are_one_sentence() -> None:
    model = network(Fault())
    inputs, targets, _ = batch(0)
    missing: Any = None
    with pytest.raises(TypeError, match="groups must be whole numbers"):
        OBJECTIVES["group"](model).step(Adam(model.parameters()), inputs, targets, missing)


@pytest.mark.parametrize("bad", BAD)
def test_a_store_takes_finite_numbers_only(bad: float) -> None:
    kept_rows = store()
    before = picture(kept_rows)
    rows = torch.zeros(2, SIZE)
    rows[1, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        kept_rows.put(torch.tensor([0, 1]), rows)
    half = store(dtype=torch.float16)
    with pytest.raises(ValueError, match=r"as torch\.float16"):
        half.put(torch.tensor([0, 1]), torch.full((2, SIZE), 1e6))
    assert picture(kept_rows) == before
    kept_rows.put(
        torch.tensor([0]), torch.full((1, SIZE), 3e38)
    )  # their sum overflows, they do not


def test_a_data_set_of_arrays_is_that_of_tensors() -> None:
    expected = data()
    inputs, targets = expected.inputs_train.numpy(), expected.targets_train.numpy()
    for labels in (targets, targets.astype(np.int32), targets.astype(np.uint8)):
        found = Dataset("own", inputs.astype(">f4"), labels, inputs, targets, 3, (0.0, 1.0))  # type: ignore[arg-type]
        assert torch.equal(found.inputs_train, expected.inputs_train)
        assert torch.equal(found.targets_train, expected.targets_train)
        assert found.inputs_train.numpy() is not inputs
    with pytest.raises(ValueError, match="array of <U1"):
        Dataset("own", inputs, np.full(NUM, "a"), inputs, targets, 3)  # type: ignore[arg-type]
