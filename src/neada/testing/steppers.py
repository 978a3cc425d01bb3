"""Checks of steppers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neada.inner import BudgetExhausted
from neada.optim import NonFiniteGradient
from neada.sets import Set
from neada.steppers import StepInfo, Stepper
from neada.testing.checks import (
    assert_close,
    assert_raises,
    clones,
    difference,
    flat,
    leaf,
    run_checks,
    saved_and_loaded,
)

__all__ = ["check_stepper"]

Make = Callable[[list[Tensor], list[Tensor]], Stepper]

_COUPLING = ((0.6, -0.3, 0.2), (0.1, 0.5, -0.4), (-0.2, 0.3, 0.7))


def check_stepper(make: Make, *, max_calls: int = 2000, accuracy: float = 0.2) -> None:
    """Check a stepper.

    On a strongly convex, strongly concave quadratic of three and three dimensions, the stepper
    counts correctly, approaches the solution, stays in its sets, respects `max_calls`, raises
    `NonFiniteGradient`, and resumes from a saved state bit for bit.

    Args:
        make: Makes the stepper of the two players, each a list of two tensors: ``make(x, y)``. If
            it gives them sets, the start is projected.
        max_calls: Gradients and values within which the solution must be approached.
        accuracy: The fraction of the norm of both gradients (gradient mappings) that may be left.

    Raises:
        AssertionError: The first requirement that is not met.

    Example:
        >>> import neada
        >>> check_stepper(lambda x, y: neada.Extragradient(x, y, lr_x=0.2, lr_y=0.2))
    """
    checks = [
        _check_type,
        _check_counters,
        _check_norms,
        _check_sets,
        _check_stationary_point,
        _check_state,
        _check_max_calls,
        _check_non_finite_gradient,
    ]
    name = type(_Game(make).stepper).__name__
    run_checks(name, checks, make)
    run_checks(name, [_check_convergence], make, max_calls, accuracy)


class _Game:
    """A quadratic with its saddle point at zero, a stepper for it, and a count of evaluations."""

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
        """A player as one vector that records each of its gradients."""
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
        """The norm of both gradient mappings at the current point."""
        noted = {player: len(found) for player, found in self.seen.items()}
        self.closure().backward()  # type: ignore[no-untyped-call]
        squares = [self.seen[player].pop() for player in noted]
        return math.sqrt(sum(squares))


def _check_type(make: Make) -> None:
    """A stepper is derived from neada.Stepper, and step returns a StepInfo."""
    game = _Game(make)
    assert isinstance(game.stepper, Stepper), f"this is a {type(game.stepper).__name__}"
    info = game.step()
    assert isinstance(info, StepInfo), f"it is {info!r}"
    value = info.value
    assert isinstance(value, Tensor) and value.numel() == 1, f"its value is {value!r}"
    assert not value.requires_grad, "its value has a graph"


def _check_counters(make: Make) -> None:
    """The counters are the numbers of gradients and values that were evaluated."""
    game = _Game(make)
    stepper = game.stepper
    infos = [game.step(batch_size=4) for _ in range(6)]
    for kind, done in game.tally.items():
        counter = f"calls_{kind}"
        counted = getattr(stepper, counter)
        assert counted == done, f"{counter} is {counted} and {done} were evaluated in 6 steps"
        reported = sum(getattr(info, counter) for info in infos)
        assert reported == done, f"the {counter} of 6 StepInfo sum to {reported}, not {done}"
    for player in ("x", "y"):
        samples, calls = getattr(stepper, f"samples_{player}"), getattr(stepper, f"calls_{player}")
        assert samples == 4 * calls, f"samples_{player} is {samples} for {calls} batches of 4"
    assert stepper.outer_steps == 6, f"outer_steps is {stepper.outer_steps} after 6 steps"
    inner = sum(info.inner_steps for info in infos)
    assert stepper.inner_steps == inner >= 6, f"{stepper.inner_steps} inner_steps, not {inner}"


def _check_norms(make: Make) -> None:
    """The squared norms of a StepInfo are those of gradients (mappings) of that step."""
    game = _Game(make)
    for i in range(4):
        before = {player: len(found) for player, found in game.seen.items()}
        info = game.step()
        for player, norm in (("x", float(info.grad_sq_x)), ("y", float(info.grad_sq_y))):
            found = game.seen[player][before[player] :] or game.seen[player][-1:]
            good = any(math.isclose(norm, square, rel_tol=1e-9, abs_tol=1e-30) for square in found)
            seen = ", ".join(f"{square:.6g}" for square in found)
            assert good, f"step {i} reports {norm:.6g} for {player} and its gradients had {seen}"


def _check_convergence(make: Make, max_calls: int, accuracy: float) -> None:
    """Player x descends and y ascends: the gradients of a quadratic game become small."""
    game = _Game(make)
    before = after = game.distance()
    while after > accuracy * before and game.stepper.total_calls < max_calls:
        game.step()
        after = game.distance()
    found = (
        f"the norm of both gradients is {before:.3g} before and {after:.3g} after {max_calls} calls"
    )
    assert after <= accuracy * before, found


def _check_sets(make: Make) -> None:
    """The function is evaluated only inside the sets of the players."""
    game = _Game(make)
    for _ in range(10):
        game.step()
    game.closure()
    assert game.worst_outside == 0.0, f"a player was {game.worst_outside:.3g} outside of its set"


def _check_stationary_point(make: Make) -> None:
    """A player at a stationary point does not move."""
    game = _Game(make, start=0.0)
    if game.distance() > 0.0 or any(bool(p.any()) for p in game.point()):
        return  # sets that do not contain the saddle point
    for _ in range(3):
        game.step()
    moved = float(flat(game.point()).abs().max())
    assert moved == 0.0, f"three steps moved it by {moved:.3g}"


def _check_state(make: Make) -> None:
    """A run that is saved and loaded continues bit for bit."""
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
        assert_close(whole.point(), second.point(), f"5 steps after the load in {dtype}")
        counters = [game.stepper.counters.state_dict() for game in (whole, second)]
        assert counters[0] == counters[1], f"the counters are {counters[1]}, not {counters[0]}"
        assert info.stop_reason == resumed.stop_reason, "the inner loops stopped differently"


def _check_max_calls(make: Make) -> None:
    """At most max_calls are evaluated: BudgetExhausted is raised before."""
    for limit in (1, 2, 5, 8):
        game = _Game(make)
        game.stepper.max_calls = limit
        run = lambda game=game, n=limit + 1: [game.step() for _ in range(n)]  # noqa: E731
        assert_raises(BudgetExhausted, run, f"{limit + 1} steps with max_calls = {limit}")
        spent = sum(game.tally.values())
        assert spent <= limit, f"{spent} were evaluated with max_calls = {limit}"


def _check_non_finite_gradient(make: Make) -> None:
    """NaN in a gradient raises NonFiniteGradient, and its player does not move."""
    for player in ("x", "y"):
        game = _Game(make)
        game.step()
        tensors = game.x if player == "x" else game.y
        before = clones(tensors)
        game.bad_player = player
        assert_raises(NonFiniteGradient, game.step, f"a NaN in the gradient of {player}")
        assert_close(tensors, before, f"in {player}")
        steps = game.stepper.outer_steps
        assert steps == 1, f"the step that failed was counted: outer_steps is {steps}"
