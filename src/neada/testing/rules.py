"""What every stopping rule promises."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from neada.scalars import Flag
from neada.stopping import InnerState, StoppingRule
from neada.testing.promises import Battery, require, saved_and_loaded

__all__ = ["BATTERY", "check_rule"]

BATTERY = Battery()

_SQUARES = (0.0, 1e-8, 1e-3, 0.01, 0.2, 0.25, 1.0, 4.0, 100.0, 1e6)
_X_SQUARES = (None, 1e-6, 0.5, 4.0, 1e4)
_TIMES = tuple((t, k) for t in (0, 1, 3, 40) for k in (0, 1, 2, 5, 41))
_SEEN = (4.0, 3.9, 1.0)  # squared x gradients: one that stalls, one that falls


def check_rule(rule: StoppingRule) -> None:
    """Check the promises of a stopping rule.

    It answers with a bool, for every row by itself if there are rows, also before the gradient is
    known; asking changes nothing; a smaller gradient mapping never undoes a stop; it stops in the
    end; it can be joined with `|` and `&`; and what it remembers is saved.

    Args:
        rule: The rule as it is before the first outer step; it is copied, not changed.

    Raises:
        AssertionError: The first promise that is broken, in one sentence.

    Example:
        >>> import neada
        >>> check_rule(neada.stopping.GradientMapping() | neada.stopping.FixedSteps(10))
    """
    BATTERY.judge(type(rule).__name__, rule)


def _states() -> list[InnerState]:
    return [
        InnerState(t, k, y, x) for t, k in _TIMES for x in _X_SQUARES for y in (None, *_SQUARES)
    ]


def _after(rule: StoppingRule, *seen: float | Tensor) -> StoppingRule:
    """A copy that has seen some x gradients."""
    twin = copy.deepcopy(rule)
    for grad_sq_x in seen:
        twin.observe_x_gradient(grad_sq_x)
    return twin


def _at(state: InnerState) -> str:
    squares = f"grad_sq_y = {state.grad_sq_y}, grad_sq_x = {state.grad_sq_x}"
    return f"at t = {state.t}, k = {state.k}, {squares}"


def _ask(rule: StoppingRule, state: InnerState) -> bool:
    return bool(rule(state))


@BATTERY.promise("a rule is derived from neada.stopping.StoppingRule and answers True or False")
def _answers(rule: object) -> None:
    good = isinstance(rule, StoppingRule)
    require(good, f"this is a {type(rule).__name__}; derive your class from StoppingRule")
    assert isinstance(rule, StoppingRule)
    for state in _states():
        answer = rule(state)
        require(isinstance(answer, bool), f"{_at(state)} the answer is {answer!r}")


@BATTERY.promise("asking a rule changes nothing: only observe_x_gradient may")
def _asking_changes_nothing(rule: StoppingRule) -> None:
    twin = copy.deepcopy(rule)
    answers = [_ask(twin, state) for state in _states()]
    for state, answer in zip(_states(), answers, strict=True):
        require(_ask(twin, state) == answer, f"{_at(state)} the second answer is not the first")


@BATTERY.promise("a smaller gradient mapping never undoes a stop, nor does knowing it")
def _is_monotone(rule: StoppingRule) -> None:
    for t, k in _TIMES:
        for x in _X_SQUARES:
            answers = [_ask(rule, InnerState(t, k, y, x)) for y in _SQUARES]
            for larger in range(1, len(_SQUARES)):
                state = InnerState(t, k, _SQUARES[larger], x)
                undone = answers[larger] and not answers[larger - 1]
                require(
                    not undone, f"{_at(state)} it stops, and at {_SQUARES[larger - 1]} it does not"
                )
            state = InnerState(t, k, None, x)
            undone = _ask(rule, state) and not all(answers)
            require(not undone, f"{_at(state)} it stops, and with some known gradient it does not")


@BATTERY.promise("it stops in the end: after a million steps at a gradient of zero")
def _stops(rule: StoppingRule) -> None:
    for t in (0, 1, 10, 100):
        state = InnerState(t, 1_000_000, 0.0, 1.0)
        require(_ask(rule, state), f"{_at(state)} it goes on")


@BATTERY.promise("a rule that looks at the x gradient says so by needs_x_gradient")
def _needs_are_declared(rule: StoppingRule) -> None:
    if rule.needs_x_gradient:
        return
    for state in _states():
        without = _ask(rule, replace(state, grad_sq_x=None))
        require(_ask(rule, state) == without, f"{_at(state)} the answer is another than without it")


@BATTERY.promise("rows are answered one by one, each as it would be alone")
def _rows_are_separate(rule: StoppingRule) -> None:
    squares = torch.tensor(_SQUARES, dtype=torch.float64)
    x_squares = torch.linspace(0.1, 30.0, len(squares), dtype=torch.float64)
    shares = torch.linspace(0.5, 1.0, len(squares), dtype=torch.float64)
    histories = [[], [x_squares, x_squares * shares, x_squares * shares**2]]
    for history in histories:
        together = _after(rule, *history)
        alone = [_after(rule, *(float(seen[i]) for seen in history)) for i in range(len(squares))]
        for t, k in _TIMES:
            state = InnerState(t, k, squares, x_squares)
            answer = together(state)
            fits = isinstance(answer, bool) or answer.shape == squares.shape
            require(fits, f"for {len(squares)} rows the answer is {answer!r}")
            each = [
                _ask(one, InnerState(t, k, float(y), float(x)))
                for one, y, x in zip(alone, squares, x_squares, strict=True)
            ]
            rows = _per_row(answer, len(squares))
            require(
                rows == each,
                f"at t = {t}, k = {k} rows {squares.tolist()} get {rows}, alone {each}",
            )


def _per_row(answer: Flag, num_rows: int) -> list[bool]:
    return [bool(flag) for flag in torch.as_tensor(answer).expand(num_rows)]


@BATTERY.promise("str and reason are a few words on one line")
def _has_words(rule: StoppingRule) -> None:
    stops = [state for state in _states() if _ask(rule, state)]
    for words in (str(rule), *(rule.reason(state) for state in stops)):
        good = isinstance(words, str) and bool(words.strip()) and "\n" not in words
        require(good, f"one of them is {words!r}")


@BATTERY.promise("what a rule remembers is saved by state_dict and goes on after load_state_dict")
def _memory_is_saved(rule: StoppingRule) -> None:
    fresh = copy.deepcopy(rule)
    used = _after(rule, *_SEEN)
    fresh.load_state_dict(saved_and_loaded(used.state_dict()))
    for _ in range(2):
        for state in _states():
            answers = (_ask(fresh, state), _ask(used, state))
            found = f"{_at(state)} the loaded rule answers {answers[0]} and the saved {answers[1]}"
            require(answers[0] == answers[1], found)
        for one in (fresh, used):
            one.observe_x_gradient(0.9)
