"""Checks of optimizers for one player."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada.optim import NonFiniteGradient, PlayerOptimizer
from neada.optim.constrain import constrain
from neada.sets import Box
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

__all__ = ["check_optimizer"]

Make = Callable[..., Optimizer]

_CENTER = (1.0, -0.5, 0.25, 2.0, -1.0, 0.5)
_SIZE = len(_CENTER)
_START = [0.0] * _SIZE


def check_optimizer(make: Make, *, rowwise: bool = False) -> None:
    """Check an optimizer for one player.

    Any torch optimizer descends, ascends with `maximize=True`, does not change gradients and
    tensors without a gradient, saves and loads bit for bit, and works with `neada.constrain`. A
    `PlayerOptimizer` also treats its groups as one player, raises `NonFiniteGradient` before it
    changes anything, and implements `reset`.

    Args:
        make: The class, or a function that makes the optimizer: ``make(params, maximize=...)``,
            where `params` are tensors or parameter groups. With `rowwise` it is also called with
            ``rowwise=True``. The test functions have curvatures between 1 and 4.
        rowwise: Check also that every row takes the steps that it would take alone.

    Raises:
        AssertionError: The first requirement that is not met.

    Example:
        >>> import neada
        >>> check_optimizer(neada.optim.AdGD, rowwise=True)
    """
    checks: list[Callable[[Make], None]] = [
        _check_descent,
        _check_maximize,
        _check_gradients_unchanged,
        _check_missing_gradient,
        _check_groups,
        _check_dtypes,
        _check_closure,
        _check_state,
        _check_constraint,
        _check_zero_gradient,
        _check_non_finite_gradient,
        _check_reset,
    ]
    if rowwise:
        checks += [_check_rows, _check_rows_without_gradient]
    run_checks(type(make([leaf(_START)])).__name__, checks, make)


def _value(w: Tensor) -> Tensor:
    """A strongly convex quadratic of the last dimension, with curvatures from 1 to 4."""
    moved = w - torch.tensor(_CENTER, dtype=w.dtype)
    weights = torch.linspace(1.0, 3.0, _SIZE, dtype=w.dtype)
    return 0.5 * ((weights * moved.square()).sum(-1) + moved.sum(-1).square() / _SIZE)


def _step(optimizer: Optimizer, value: Callable[[], Tensor]) -> None:
    """One step as a stepper takes it: with the gradient in `.grad` and the value as an argument."""
    optimizer.zero_grad()
    now = value()
    now.sum().backward()  # type: ignore[no-untyped-call]
    _take(optimizer, now.detach(), value)


def _take(optimizer: Optimizer, value: float | Tensor, closure: Callable[[], Tensor]) -> None:
    """One step with the current gradient."""
    if isinstance(optimizer, PlayerOptimizer):
        optimizer.step(closure, value=value)
    else:
        optimizer.step()


def _run(optimizer: Optimizer, w: Tensor, num_steps: int) -> None:
    for _ in range(num_steps):
        _step(optimizer, lambda: _value(w))


def _check_descent(make: Make) -> None:
    """It is a torch optimizer that decreases a strongly convex function."""
    w = leaf(_START)
    optimizer = make([w])
    assert isinstance(optimizer, Optimizer), f"this is a {type(optimizer).__name__}"
    values = []
    for _ in range(60):
        values.append(_value(w.detach()).item())
        _run(optimizer, w, 1)
    assert min(values) < values[0], (
        f"f is {values[0]:.4g} before and {values[-1]:.4g} after 59 steps"
    )


def _check_maximize(make: Make) -> None:
    """With maximize=True the steps on -f are the steps on f without it."""
    low, high = leaf(_START), leaf(_START)
    minimizing, maximizing = make([low]), make([high], maximize=True)
    for i in range(20):
        _step(minimizing, lambda: _value(low))
        _step(maximizing, lambda: -_value(high))
        assert_close([low], [high], f"after {i + 1} steps")


def _check_gradients_unchanged(make: Make) -> None:
    """A step does not change the gradients in .grad."""
    for maximize in (False, True):
        w = leaf(_START)
        optimizer = make([w], maximize=maximize)
        for _ in range(3):
            _run(optimizer, w, 1)
            assert w.grad is not None
            before = w.grad.clone()
            optimizer.zero_grad()
            w.grad = before.clone()
            _take(optimizer, _value(w.detach()).item(), lambda w=w: _value(w))  # type: ignore[misc]
            assert_close([w.grad], [before], f"with maximize={maximize}")


def _check_missing_gradient(make: Make) -> None:
    """A tensor without a gradient does not move."""
    used, unused = leaf(_START), leaf([1.0, 2.0])
    optimizer = make([unused, used])
    optimizer.step()
    _run(optimizer, used, 5)
    assert_close([unused], [torch.tensor([1.0, 2.0])], "after five steps")


def _check_groups(make: Make) -> None:
    """Every group moves, also one added later; a PlayerOptimizer is one player."""
    joint = leaf(_START)
    parts = [leaf(_START[:1]), leaf([[0.0], [0.0]]), leaf(_START[:3])]
    one, split = make([joint]), make([{"params": parts[:2]}, {"params": parts[2:]}])
    for _ in range(10):
        _step(one, lambda: _value(joint))
        _step(split, lambda: _value(flat(parts)))
    still = [i for i, part in enumerate(parts) if not bool(part.any())]
    assert not still, f"tensor {still[:1]} of three in two groups did not move"
    if isinstance(one, PlayerOptimizer):
        assert_close([flat(parts)], [joint], "in two groups after 10 steps", tol=1e-9)
    late = leaf(_START[:3])
    growing = make([parts[2]])
    _step(growing, lambda: _value(torch.cat([parts[2], late])))
    growing.add_param_group({"params": [late]})
    for _ in range(3):
        _step(growing, lambda: _value(torch.cat([parts[2], late])))
    assert bool(late.any()) and bool(late.isfinite().all()), f"the late group is at {late.tolist()}"


def _check_dtypes(make: Make) -> None:
    """Parameters in float32 stay float32 and follow float64 ones."""
    single, double = leaf(_START, torch.float32), leaf(_START)
    _run(make([single]), single, 8)
    _run(make([double]), double, 8)
    assert single.dtype == torch.float32, f"they became {single.dtype}"
    assert_close([single], [double], "after 8 steps", tol=1e-3)


def _check_closure(make: Make) -> None:
    """A step with a closure returns the loss and is the same step."""
    ours, usual = leaf(_START), leaf(_START)
    one, other = make([ours]), make([usual])

    def closure() -> Tensor:
        other.zero_grad(set_to_none=False)
        loss = _value(usual)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(5):
        _step(one, lambda: _value(ours))
        expected = _value(usual.detach())
        loss: Any = other.step(closure)  # type: ignore[arg-type]
        assert loss is not None and loss == expected, f"it returned {loss}"
    assert_close([ours], [usual], "after 5 steps")


def _check_state(make: Make) -> None:
    """A run that is saved and loaded continues bit for bit."""
    for dtype in (torch.float32, torch.float64):
        whole, half = leaf(_START, dtype), leaf(_START, dtype)
        _run(make([whole]), whole, 40)
        first = make([half])
        _run(first, half, 20)
        second = make([half])
        second.load_state_dict(saved_and_loaded(first.state_dict()))
        _run(second, half, 20)
        assert_close([whole], [half], f"20 steps after the load in {dtype}")


def _check_constraint(make: Make) -> None:
    """With neada.constrain every iterate is in its set, or constrain raises ValueError."""
    box = Box(-0.4, 0.6)
    w = leaf([5.0] * _SIZE)
    optimizer = make([w])
    try:
        constrain(optimizer, box)
    except ValueError:
        return
    for i in range(30):
        _run(optimizer, w, 1)
        outside = difference([box.project(w)], [w])
        assert bool(box.contains(w)), f"step {i + 1} leaves it by {outside:.3g}"


def _check_zero_gradient(make: Make) -> None:
    """A gradient of zero gives a finite step."""
    w = leaf(_START)
    optimizer = make([w])
    for _ in range(2):
        w.grad = torch.zeros_like(w)
        _take(optimizer, 1.0, lambda: torch.ones((), dtype=w.dtype))
    assert bool(w.isfinite().all()), f"the parameters are {w.tolist()}; look for 0/0"


def _check_non_finite_gradient(make: Make) -> None:
    """A PlayerOptimizer raises for NaN or Inf in a gradient before anything changes."""
    first, second = leaf(_START), leaf([[0.0] * 3] * 2)
    optimizer = make([first, second])
    if not isinstance(optimizer, PlayerOptimizer):
        return
    value = lambda: _value(first + second.flatten())  # noqa: E731
    for bad in (float("nan"), float("inf"), -float("inf")):
        for _ in range(2):
            _step(optimizer, value)
        points, state = clones([first, second]), repr(optimizer.state_dict())
        assert second.grad is not None
        second.grad[1, 2] = bad
        step = lambda: optimizer.step(value, value=1.0)  # noqa: E731
        assert_raises(NonFiniteGradient, step, f"a gradient of {bad}")
        assert difference([first, second], points) == 0.0, f"a gradient of {bad} moved a tensor"
        assert repr(optimizer.state_dict()) == state, f"a gradient of {bad} changed the state"


def _check_reset(make: Make) -> None:
    """The reset of a PlayerOptimizer keeps only the point, or with keep='everything' all."""
    used = leaf(_START)
    optimizer = make([used])
    if not isinstance(optimizer, PlayerOptimizer):
        return
    _run(optimizer, used, 7)
    fresh = leaf(used)
    optimizer.reset()
    _run(optimizer, used, 7)
    _run(make([fresh]), fresh, 7)
    assert_close([used], [fresh], "7 steps after reset()")
    plain, resetting = leaf(_START), leaf(_START)
    one, other = make([plain]), make([resetting])
    assert isinstance(other, PlayerOptimizer)
    for _ in range(3):
        _run(one, plain, 4)
        _run(other, resetting, 4)
        other.reset(keep="everything")
    assert_close([plain], [resetting], "after reset(keep='everything')")


def _check_rows(make: Make) -> None:
    """With rowwise=True every row takes the steps that it would take alone."""
    start = torch.randn(3, _SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, alone = leaf(start), [leaf(row[None]) for row in start]
    together, separate = make([rows], rowwise=True), [make([w]) for w in alone]
    for _ in range(12):
        _step(together, lambda: _value(rows))
        for w, optimizer in zip(alone, separate, strict=True):
            _step(optimizer, lambda w=w: _value(w).sum())  # type: ignore[misc]
    assert_close([rows], [torch.cat(alone)], "after 12 steps", tol=1e-8)


def _check_rows_without_gradient(make: Make) -> None:
    """A row whose gradient is zero behaves as it would alone."""
    pauses = [[1, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]
    targets = torch.tensor([[1.0, -0.3], [0.2, 0.9], [-1.5, 0.4]], dtype=torch.float64)
    rows, alone = leaf(torch.zeros(3, 2)), [leaf(torch.zeros(1, 2)) for _ in range(3)]
    together, separate = make([rows], rowwise=True), [make([w]) for w in alone]

    def value(w: Tensor, target: Tensor, moving: Tensor) -> Tensor:
        return ((w - target).square().sum(-1) + 1.0) * moving + 1.0

    for moving in torch.tensor(pauses, dtype=torch.float64):
        _step(together, lambda m=moving: value(rows, targets, m))  # type: ignore[misc]
        for i in range(3):
            _step(separate[i], lambda i=i, m=moving: value(alone[i], targets[i], m[i]).sum())  # type: ignore[misc]
    assert_close([rows], [torch.cat(alone)], f"after {len(pauses)} steps", tol=1e-8)
