"""NaN and infinity at an evaluation of a step, a solve, a training.

After the error a step has changed nothing: the world that met the bad number and a twin that did
not are the same, bit for bit, and so they are after one more step. `minimax` and `train` end with a
status.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import neada
from campaigns import trainings
from campaigns.batches import Trial, in_batches
from campaigns.trials import Tally
from neada import robust, solve
from neada.inner import InnerOptions
from neada.solve.methods import Players, make_stepper
from neada.stopping import FixedSteps

__all__ = ["run"]

_BAD = (math.nan, math.inf, -math.inf)
_OPTIONS = {"universal-mirror-prox": {"diameter": 4.0}}
_BATCH = 400
_NUM = {"short": (40, 30, 10, 10), "full": (3000, 2000, 400, 400)}
"""Of steppers, of objectives, of solves, of trainings."""


class Fault:
    """Spoils one evaluation.

    Args:
        kind: "value" spoils what is returned, "x" and "y" a player's gradient, "layer" what is
            inside of a network. What is not spoiled is multiplied by one, so that a network
            is the same to a symbolic trace.
        at: Which evaluation since `calls` was 0, from 1.
        bad: The number.
    """

    def __init__(self, kind: str, at: int, bad: float) -> None:
        self.kind, self.at, self.bad = kind, at, bad
        self.calls = 0
        self.active = False

    def spoil(self, kind: str, tensor: Tensor) -> Tensor:
        """The tensor, or its bad version: of gradients the backward pass is spoiled."""
        due = self.active and self.kind == kind and self.calls == self.at
        if kind in ("value", "layer"):
            return tensor * (self.bad if due else 1.0)
        passed = tensor * 1.0
        if due and passed.requires_grad:
            passed.register_hook(lambda g: torch.full_like(g, self.bad))  # type: ignore[no-untyped-call]
        return passed


@dataclass
class World:
    """Something that steps, and everything that it may have changed."""

    step: Callable[[], object]
    state: Callable[[], Any]
    fault: Fault


def run(tally: Tally, length: str, seed: int, scratch: Path) -> None:
    """Count the trials of this kind."""
    draw = random.Random(seed)
    data = trainings.make_data(scratch)
    makers = (_stepper_trial, _objective_trial, _solve_trial, _training_trial)
    for make, number in zip(makers, _NUM[length], strict=True):
        in_batches(tally, [make(draw, data) for _ in range(number)], _BATCH)


def _stepper_trial(draw: random.Random, data: Path) -> Trial:
    method = draw.choice([info.name for info in solve.methods()])
    fault = (draw.choice(("value", "x", "y")), draw.randrange(1, 9), draw.choice(_BAD))
    in_sets, first = draw.random() < 0.3, draw.randrange(4)
    name = f"{method}{' in sets' * in_sets}, {first} steps, then {_words(fault)}"
    return Trial(name, lambda: _judge(lambda: _stepper_world(method, in_sets, fault), first))


def _words(fault: tuple[str, int, float]) -> str:
    kind, at, bad = fault
    return f"{bad} in evaluation {at} ({kind})"


def _stepper_world(method: str, in_sets: bool, fault: tuple[str, int, float]) -> World:
    x, y = (
        torch.tensor(start, dtype=torch.float64, requires_grad=True)
        for start in ([0.8, -1.1, 0.4], [0.3, -0.2, 0.1])
    )
    sets = (neada.sets.Box(-2.0, 2.0), neada.sets.L2Ball(1.0)) if in_sets else (None, None)
    stepper = make_stepper(method, Players([x], [y], *sets), _OPTIONS.get(method))
    trouble = Fault(*fault)

    def closure() -> Tensor:
        trouble.calls += 1
        first, second = trouble.spoil("x", x), trouble.spoil("y", y)
        value = first.cos().sum() + 0.5 * first @ second.roll(1) - second @ second
        return trouble.spoil("value", value)

    return World(lambda: stepper.step(closure), lambda: [x, y, stepper.state_dict()], trouble)


def _judge(make: Callable[[], World], first: int) -> str:
    world, twin = make(), make()
    for _ in range(first):
        world.step()
        twin.step()
    world.fault.active, world.fault.calls = True, 0
    try:
        world.step()
    except FloatingPointError:  # `NonFiniteGradient`, or its base
        pass
    else:
        # Nobody needed the number, or it was at a trial point that is given up.
        return "" if _all_finite(world.state()) else "no error, and numbers that are not finite"
    world.fault.active = False
    if differing := _difference(world.state(), twin.state()):
        return f"after the error {differing} has changed"
    world.step()
    twin.step()
    differing = _difference(world.state(), twin.state())
    return f"after one more step {differing} differs from the twin's" if differing else ""


def _leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict):
        for key, entry in content.items():
            yield from _leaves(entry, f"{path}.{key}")
    elif isinstance(content, list | tuple):
        for number, entry in enumerate(content):
            yield from _leaves(entry, f"{path}[{number}]")
    else:
        yield path, content


def _difference(first: Any, second: Any) -> str:
    """Where two states differ, bit for bit; empty if nowhere."""
    for left, right in itertools.zip_longest(_leaves(first), _leaves(second)):
        if left is None or right is None or left[0] != right[0]:
            return f"the layout at {(left or right)[0]}"
        if _bits(left[1]) != _bits(right[1]):
            return str(left[0])
    return ""


def _bits(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return str(leaf.dtype), leaf.shape, leaf.detach().contiguous().numpy().tobytes()


def _all_finite(state: Any) -> bool:
    return all(
        bool(leaf.isfinite().all())
        for _, leaf in _leaves(state)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    )


class _Network(nn.Module):
    """A network with batch norm, whose evaluations can be spoiled."""

    def __init__(self, fault: Fault, num_inputs: int = 16) -> None:
        super().__init__()
        self.fault = fault
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.first, self.last = nn.Linear(num_inputs, 4), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, inputs: Tensor) -> Tensor:
        """Two outputs per sample."""
        if not isinstance(inputs, torch.fx.Proxy):  # a symbolic trace is no evaluation
            self.fault.calls += 1
        inside = self.norm(self.first(self.fault.spoil("layer", inputs.flatten(1))))
        outputs = self.fault.spoil("x", self.last(inside))
        return self.fault.spoil("value", outputs)


_OBJECTIVES: dict[str, Callable[..., Any]] = {
    "WRM": lambda model, **more: robust.WRM(model, cross_entropy, 1.3, **more),
    "AdversarialTraining": lambda model, **more: robust.AdversarialTraining(
        model, cross_entropy, 0.1, **more
    ),
    "TRADES": lambda model, **more: robust.TRADES(model, cross_entropy, 0.1, **more),
    "GroupDRO": lambda model, **more: robust.GroupDRO(model, cross_entropy, 2, **more),
}


def _objective_trial(draw: random.Random, data: Path) -> Trial:
    objective = draw.choice(list(_OBJECTIVES))
    fault = (draw.choice(("value", "x", "layer")), draw.randrange(1, 7), draw.choice(_BAD))
    options: dict[str, Any] = {}
    if objective != "GroupDRO":
        options = {
            "batch_norm": draw.choice(("frozen", "batch")),
            "steps": draw.choice((None, 1, 3)),
            "stored": draw.random() < 0.5,
            "reuse_last": draw.random() < 0.2,
        }
        options["reuse_last"] &= options["steps"] is not None
    optimizer = draw.choice(("Adam", "SGD"))
    first = draw.randrange(3)
    name = f"{objective} {options} with {optimizer}, {first} steps, then {_words(fault)}"

    def make() -> World:
        return _objective_world(objective, optimizer, fault, **options)

    return Trial(name, lambda: _judge(make, first))


def _objective_world(
    objective: str,
    optimizer: str,
    fault: tuple[str, int, float],
    steps: int | None = None,
    stored: bool = False,
    reuse_last: bool = False,
    **more: Any,
) -> World:
    trouble = Fault(*fault)
    model = _Network(trouble)
    if objective != "GroupDRO":
        more["inner"] = InnerOptions(reuse_last=reuse_last)
        more["stopping"] = None if steps is None else FixedSteps(steps)
        more["store"] = robust.PerturbationStore(12, (16,)) if stored else None
    made = _OBJECTIVES[objective](model, **more)
    if objective == "TRADES":  # the same random starts for both worlds
        made.generator = torch.Generator().manual_seed(0)
    x_optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 16, generator=source)
    targets = torch.arange(12) % 2
    side = targets if objective == "GroupDRO" else torch.arange(12) if stored else None

    def state() -> Any:
        return [model.state_dict(), x_optimizer.state_dict(), made.state_dict()]

    return World(lambda: made.step(x_optimizer, inputs, targets, side), state, trouble)


def _solve_trial(draw: random.Random, data: Path) -> Trial:
    method = draw.choice([info.name for info in solve.methods()])
    fault = ("value", draw.randrange(1, 40), draw.choice(_BAD))

    def act() -> str:
        trouble = Fault(*fault)
        trouble.active = True

        def f(x: Tensor, y: Tensor) -> Tensor:
            trouble.calls += 1
            return trouble.spoil("value", x.cos().sum() + 0.5 * x @ y - y @ y)

        options = _OPTIONS.get(method)
        found = neada.minimax(
            f, [0.8, -1.1], [0.3, 0.1], method=method, max_calls=120, options=options
        )
        finite = all(bool(torch.as_tensor(point).isfinite().all()) for point in (found.x, found.y))
        if not isinstance(found.status, neada.Status) or not finite:
            return f"{found.status}, x = {found.x}, y = {found.y}"
        return ""

    return Trial(f"minimax by {method}, {_words(fault)}", act)


def _training_trial(draw: random.Random, data: Path) -> Trial:
    way = draw.choice(["plain", "memory store", "group", "tiada", "free", "adversarial", "trades"])
    fault = (draw.choice(("value", "x", "layer")), draw.randrange(1, 40), draw.choice(_BAD))
    method, objective = {
        "tiada": ("tiada", "wrm"),
        "free": ("free", "wrm"),
        "group": ("neada", "group"),
        "adversarial": ("gdmax", "adversarial"),
        "trades": ("gdmax", "trades"),
    }.get(way, ("neada", "wrm"))

    def act() -> str:
        trouble = Fault(*fault)
        trouble.active = True
        config = neada.training.TrainConfig(
            data=str(data),
            method=method,
            objective=objective,
            warm_start="memory" if way == "memory store" else "none",
            batch_size=16,
            max_calls=30,
            eval_eps=(0.1,),
        )
        found = neada.training.train(config, model=_Network(trouble))
        if found.status is neada.training.TrainStatus.FINISHED:
            finite = _all_finite(found.model.state_dict())
            return "" if finite else "finished with numbers that are not finite"
        return "" if found.status is neada.training.TrainStatus.NON_FINITE else str(found.status)

    return Trial(f"train, {way}, {_words(fault)}", act)
