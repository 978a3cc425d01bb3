"""What every stepper promises."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neada.inner import BudgetExhausted
from neada.optim import NonFiniteGradient
from neada.sets import Set
from neada.steppers import StepInfo, Stepper
from neada.testing.promises import (
    Battery,
    clones,
    difference,
    flat,
    leaf,
    require,
    saved_and_loaded,
)

__all__ = ["BATTERY", "check_stepper"]

BATTERY = Battery()
Make = Callable[[list[Tensor], list[Tensor]], Stepper]

_COUPLING = ((0.6, -0.3, 0.2), (0.1, 0.5, -0.4), (-0.2, 0.3, 0.7))


def check_stepper(make: Make, *, max_calls: int = 2000, accuracy: float = 0.2) -> None:
    """Check the promises of a stepper.

    On a strongly convex, strongly concave quadratic of three and three dimensions: its counters are
    what was evaluated, it approaches the solution, stays in its sets, keeps `max_calls`, refuses
    gradients that are not finite, and goes on from a saved state bit for bit.

    Args:
        make: Makes the stepper of the two players, each a list of two tensors: ``make(x, y)``. If
            it gives them sets, the battery starts inside.
        max_calls: Gradients and values within which the solution must be approached.
        accuracy: By how much: the share of the norm of both gradients (gradient mappings) that may
            be left.

    Raises:
        AssertionError: The first promise that is broken, in one sentence.

    Example:
        >>> import neada
        >>> check_stepper(lambda x, y: neada.Extragradient(x, y, lr_x=0.2, lr_y=0.2))
    """
    try:
        name = type(_Game(make).stepper).__name__
    except Exception as error:
        raise AssertionError(
            f"make(x, y) returns a stepper, but it raised {type(error).__name__}: {error}"
        ) from error
    BATTERY.judge(name, make, max_calls, accuracy)


class _Game:
    """A quadratic with its saddle point at zero, a stepper on it, and what is really evaluated."""

    def __init__(
        self,
        make: Make,
        dtype: torch.dtype = torch.float64,
        start: float = 1.0,
        point: Sequence[Tensor] | None = None,
    ) -> None:
        self.x = [leaf([0.8 * start, -1.1 * start], dtype), leaf([[0.4 * start]], dtype)]
        self.y = [leaf([0.3 * start], dtype), leaf([-0.2 * start, 0.5 * start], dtype)]
        if point is not None:
            with torch.no_grad():
                for tensor, saved in zip([*self.x, *self.y], point, strict=True):
                    tensor.copy_(saved)
        self.tally = {"x": 0, "y": 0, "value": 0}
        self.seen: dict[str, list[float]] = {"x": [], "y": []}
        self.worst_outside = 0.0
        self.bad_player = ""
        self.stepper = make(self.x, self.y)
        if start and point is None and isinstance(self.stepper, Stepper):
            for members, one in (*self.sets("x"), *self.sets("y")):
                with torch.no_grad():
                    one.project_(members)

    def sets(self, player: Any) -> list[tuple[list[Tensor], Set]]:
        """The sets of a player, each with all its tensors."""
        joint: dict[int, tuple[list[Tensor], Set]] = {}
        for tensor, one in self.stepper.sets(player):
            if one is not None:
                joint.setdefault(id(one), ([], one))[0].append(tensor)
        return list(joint.values())

    def point(self) -> list[Tensor]:
        return clones([*self.x, *self.y])

    def step(self, **options: int) -> StepInfo:
        return self.stepper.step(self.closure, **options)

    def closure(self) -> Tensor:
        for members, one in (*self.sets("x"), *self.sets("y")):
            outside = difference(one.project(members), members)
            if not bool(torch.as_tensor(one.contains(members)).all()):
                self.worst_outside = max(self.worst_outside, outside)
        self.tally["value"] += not torch.is_grad_enabled()
        x, y = self._watched("x"), self._watched("y")
        weights = torch.tensor([1.0, 1.5, 2.0], dtype=x.dtype)
        coupling = torch.tensor(_COUPLING, dtype=x.dtype)
        curved = 0.5 * (weights * (x.square() - y.square())).sum() + x @ coupling @ y
        if self.bad_player:  # the same value, but a slope of 0/0
            bad = x if self.bad_player == "x" else y
            curved = curved + (bad - bad.detach()).square().sum().sqrt()
        return curved

    def _watched(self, player: str) -> Tensor:
        """A player as one vector that notes each gradient that is taken of it."""
        tensors = self.x if player == "x" else self.y
        joined = flat(tensors)
        if joined.requires_grad:
            points = clones(tensors)

            def note(gradient: Tensor) -> None:
                self.tally[player] += 1
                if not bool(gradient.isfinite().all()):
                    return
                self.seen[player].append(self._mapping_sq(player, tensors, points, gradient))

            joined.register_hook(note)  # type: ignore[no-untyped-call]
        return joined

    def _mapping_sq(
        self, player: str, tensors: Sequence[Tensor], points: list[Tensor], gradient: Tensor
    ) -> float:
        ascent = gradient.detach() if player == "y" else -gradient.detach()
        each = torch.split(ascent, [p.numel() for p in points])
        parts = [part.reshape(p.shape) for part, p in zip(each, points, strict=True)]
        place = {id(tensor): i for i, tensor in enumerate(tensors)}
        for members, one in self.sets(player):
            chosen = [place[id(member)] for member in members]
            mapped = one.gradient_mapping([points[i] for i in chosen], [parts[i] for i in chosen])
            for i, part in zip(chosen, mapped, strict=True):
                parts[i] = part
        return float(flat(parts).double().square().sum())

    def distance(self) -> float:
        """The norm of both gradient mappings at the present point."""
        noted = {player: len(found) for player, found in self.seen.items()}
        self.closure().backward()  # type: ignore[no-untyped-call]
        squares = [self.seen[player].pop() for player in noted]
        return math.sqrt(sum(squares))


@BATTERY.promise("a stepper is derived from neada.Stepper, and step returns a StepInfo")
def _is_a_stepper(make: Make, max_calls: int, accuracy: float) -> None:
    game = _Game(make)
    good = isinstance(game.stepper, Stepper)
    require(good, f"this is a {type(game.stepper).__name__}; derive your class from it")
    info = game.step()
    require(isinstance(info, StepInfo), f"it is {info!r}")
    value = info.value
    good = isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad
    require(good, f"its value is {value!r}, not one number without a graph")


@BATTERY.promise("the counters are the gradients and values that were really evaluated")
def _counts(make: Make, max_calls: int, accuracy: float) -> None:
    game = _Game(make)
    stepper = game.stepper
    infos = [game.step(batch_size=4) for _ in range(6)]
    for kind, done in game.tally.items():
        counter = f"calls_{kind}"
        counted = getattr(stepper, counter)
        require(counted == done, f"{counter} is {counted} and {done} were evaluated in 6 steps")
        reported = sum(getattr(info, counter) for info in infos)
        require(reported == done, f"the {counter} of 6 StepInfo sum to {reported}, not {done}")
    for player in ("x", "y"):
        samples, calls = getattr(stepper, f"samples_{player}"), getattr(stepper, f"calls_{player}")
        require(samples == 4 * calls, f"samples_{player} is {samples} for {calls} batches of 4")
    require(stepper.outer_steps == 6, f"outer_steps is {stepper.outer_steps} after 6 steps")
    inner = sum(info.inner_steps for info in infos)
    good = stepper.inner_steps == inner >= 6
    require(good, f"inner_steps is {stepper.inner_steps}, and the StepInfo sum to {inner}")


@BATTERY.promise("the squared norms of a StepInfo are those of gradients (mappings) of that step")
def _norms_are_true(make: Make, max_calls: int, accuracy: float) -> None:
    game = _Game(make)
    for i in range(4):
        before = {player: len(found) for player, found in game.seen.items()}
        info = game.step()
        for player, norm in (("x", float(info.grad_sq_x)), ("y", float(info.grad_sq_y))):
            found = game.seen[player][before[player] :] or game.seen[player][-1:]
            good = any(math.isclose(norm, square, rel_tol=1e-9, abs_tol=1e-30) for square in found)
            seen = ", ".join(f"{square:.6g}" for square in found)
            require(good, f"step {i} reports {norm:.6g} for {player} and its gradients had {seen}")


@BATTERY.promise("x descends and y ascends: the solution of a quadratic game is approached")
def _approaches(make: Make, max_calls: int, accuracy: float) -> None:
    game = _Game(make)
    before = after = game.distance()
    while after > accuracy * before and game.stepper.total_calls < max_calls:
        game.step()
        after = game.distance()
    found = f"{max_calls} calls took the norm of both gradients from {before:.3g} to {after:.3g}"
    require(after <= accuracy * before, found)


@BATTERY.promise("f is evaluated only inside the sets of the players")
def _stays_in_its_sets(make: Make, max_calls: int, accuracy: float) -> None:
    game = _Game(make)
    for _ in range(10):
        game.step()
    game.closure()
    require(game.worst_outside == 0.0, f"a player was {game.worst_outside:.3g} outside of its set")


@BATTERY.promise("a player at a stationary point stays there")
def _rests_at_the_solution(make: Make, max_calls: int, accuracy: float) -> None:
    game = _Game(make, start=0.0)
    if game.distance() > 0.0 or any(bool(p.any()) for p in game.point()):
        return  # sets that do not contain the saddle point
    for _ in range(3):
        game.step()
    moved = float(flat(game.point()).abs().max())
    require(moved == 0.0, f"three steps moved it by {moved:.3g}")


@BATTERY.promise("a run that is saved and loaded goes on bit for bit")
def _state_is_complete(make: Make, max_calls: int, accuracy: float) -> None:
    for dtype in (torch.float32, torch.float64):
        whole, first = _Game(make, dtype), _Game(make, dtype)
        for _ in range(5):
            first.step()
        state, point = saved_and_loaded((first.stepper.state_dict(), first.point()))
        second = _Game(make, dtype, point=point)
        second.stepper.load_state_dict(state)
        for _ in range(10):
            info = whole.step()
        for _ in range(5):
            resumed = second.step()
        apart = difference(whole.point(), second.point())
        require(apart == 0.0, f"5 steps after the load the players are {apart:.3g} away in {dtype}")
        counters = [game.stepper.counters.state_dict() for game in (whole, second)]
        require(counters[0] == counters[1], f"the counters are {counters[1]}, not {counters[0]}")
        reasons = (info.stop_reason, resumed.stop_reason)
        require(
            reasons[0] == reasons[1], f"the inner loop stopped by {reasons[1]}, not {reasons[0]}"
        )


@BATTERY.promise("no more than max_calls are evaluated: BudgetExhausted is raised before")
def _keeps_the_budget(make: Make, max_calls: int, accuracy: float) -> None:
    for limit in (1, 2, 5, 8):
        game = _Game(make)
        game.stepper.max_calls = limit
        try:
            for _ in range(limit + 1):
                game.step()
        except BudgetExhausted:
            pass
        else:
            raise AssertionError(f"max_calls = {limit} was not noticed in {limit + 1} steps")
        spent = sum(game.tally.values())
        require(spent <= limit, f"{spent} were evaluated with max_calls = {limit}")


@BATTERY.promise(
    "a gradient that is not finite raises NonFiniteGradient and moves its player nowhere"
)
def _refuses_non_finite(make: Make, max_calls: int, accuracy: float) -> None:
    for player in ("x", "y"):
        game = _Game(make)
        game.step()
        tensors = game.x if player == "x" else game.y
        before = clones(tensors)
        game.bad_player = player
        try:
            game.step()
        except NonFiniteGradient:
            pass
        else:
            raise AssertionError(f"a gradient of NaN for {player} passed")
        moved = difference(tensors, before)
        require(moved == 0.0, f"it moved {player} by {moved:.3g}")
        steps = game.stepper.outer_steps
        require(steps == 1, f"the step that failed was counted: outer_steps is {steps}")
