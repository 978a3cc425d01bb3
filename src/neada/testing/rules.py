"""Checks of stopping rules."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from neada.stopping import InnerState, StoppingRule
from neada.testing.checks import run_checks, saved_and_loaded

__all__ = ["check_rule"]

_SQUARES = (0.0, 1e-8, 1e-3, 0.01, 0.2, 0.25, 1.0, 4.0, 100.0, 1e6)
_X_SQUARES = (None, 1e-6, 0.5, 4.0, 1e4)
_TIMES = tuple((t, k) for t in (0, 1, 3, 40) for k in (0, 1, 2, 5, 41))
_SEEN = (4.0, 3.9, 1.0)  # squared x gradients: one that stalls, one that falls
_STATES = [InnerState(t, k, y, x) for t, k in _TIMES for x in _X_SQUARES for y in (None, *_SQUARES)]


def check_rule(rule: StoppingRule) -> None:
    """Check a stopping rule.

    It returns a bool, or one per row, also while the gradient is unknown; evaluating it changes
    nothing; a smaller gradient mapping never revokes a stop; it stops eventually; and its state is
    saved.

    Args:
        rule: The rule before the first outer step; it is copied, not changed.

    Raises:
        AssertionError: The first requirement that is not met.

    Example:
        >>> import neada
        >>> check_rule(neada.stopping.GradientMapping() | neada.stopping.FixedSteps(10))
    """
    checks = [
        _check_type,
        _check_purity,
        _check_monotonicity,
        _check_stops,
        _check_needs_x_gradient,
        _check_rows,
        _check_words,
        _check_state,
    ]
    run_checks(type(rule).__name__, checks, rule)


def _after(rule: StoppingRule, *seen: float | Tensor) -> StoppingRule:
    """A copy that has observed some x gradients."""
    twin = copy.deepcopy(rule)
    for grad_sq_x in seen:
        twin.observe_x_gradient(grad_sq_x)
    return twin


def _check_type(rule: object) -> None:
    """A rule is derived from neada.stopping.StoppingRule and returns True or False."""
    assert isinstance(rule, StoppingRule), type(rule).__name__
    for state in _STATES:
        answer = rule(state)
        assert isinstance(answer, bool), f"{answer!r} at {state}"


def _check_purity(rule: StoppingRule) -> None:
    """Evaluating a rule changes nothing: only observe_x_gradient may."""
    twin = copy.deepcopy(rule)
    answers = [twin(state) for state in _STATES]
    for state, answer in zip(_STATES, answers, strict=True):
        assert twin(state) == answer, f"the second answer differs from the first at {state}"


def _check_monotonicity(rule: StoppingRule) -> None:
    """A smaller gradient mapping never revokes a stop, nor does a known one."""
    for t, k in _TIMES:
        for x in _X_SQUARES:
            answers = [rule(InnerState(t, k, y, x)) for y in _SQUARES]
            where = f"for grad_sq_y = {_SQUARES} at t = {t}, k = {k}, grad_sq_x = {x}"
            assert answers == sorted(answers, reverse=True), f"{answers} {where}"
            unknown = rule(InnerState(t, k, None, x))
            assert all(answers) or not unknown, f"{answers}, and a stop if it is unknown, {where}"


def _check_stops(rule: StoppingRule) -> None:
    """A rule stops eventually: after a million steps at a gradient of zero."""
    for t in (0, 1, 10, 100):
        assert rule(InnerState(t, 1_000_000, 0.0, 1.0)), f"no stop at t = {t}"


def _check_needs_x_gradient(rule: StoppingRule) -> None:
    """A rule that uses the x gradient declares it by needs_x_gradient."""
    if not rule.needs_x_gradient:
        for state in _STATES:
            without = rule(replace(state, grad_sq_x=None))
            assert rule(state) == without, f"the answer depends on it at {state}"


def _check_rows(rule: StoppingRule) -> None:
    """Rows are answered one by one, each as it would be alone."""
    squares = torch.tensor(_SQUARES, dtype=torch.float64)
    x_squares = torch.linspace(0.1, 30.0, len(squares), dtype=torch.float64)
    shares = torch.linspace(0.5, 1.0, len(squares), dtype=torch.float64)
    for history in ([], [x_squares, x_squares * shares, x_squares * shares**2]):
        together = _after(rule, *history)
        alone = [_after(rule, *(float(seen[i]) for seen in history)) for i in range(len(squares))]
        for t, k in _TIMES:
            answer = torch.as_tensor(together(InnerState(t, k, squares, x_squares)))
            each = [
                one(InnerState(t, k, float(y), float(x)))
                for one, y, x in zip(alone, squares, x_squares, strict=True)
            ]
            rows = answer.expand(len(squares)).tolist()
            assert rows == each, f"rows {rows}, alone {each} at t = {t}, k = {k}"


def _check_words(rule: StoppingRule) -> None:
    """Str and reason are a few words on one line."""
    stops = [state for state in _STATES if rule(state)]
    for words in (str(rule), *(rule.reason(state) for state in stops)):
        assert isinstance(words, str) and words.strip() and "\n" not in words, repr(words)


def _check_state(rule: StoppingRule) -> None:
    """The state of a rule is saved by state_dict and restored by load_state_dict."""
    fresh, used = copy.deepcopy(rule), _after(rule, *_SEEN)
    fresh.load_state_dict(saved_and_loaded(used.state_dict()))
    for _ in range(2):
        for state in _STATES:
            assert fresh(state) == used(state), f"the restored rule differs at {state}"
        for one in (fresh, used):
            one.observe_x_gradient(0.9)
