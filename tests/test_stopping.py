"""Stopping rules: tables of answers, counts, joins, memory, and what is refused."""

import pytest
import torch

from neada.stopping import (
    FixedAccuracy,
    FixedSteps,
    GradientMapping,
    InnerState,
    InnerSteps,
    RelativeAccuracy,
)

# rule, t, k, squared mapping, squared x gradient, answer
TABLE = [
    (GradientMapping(), 0, 0, 1.0, None, True),
    (GradientMapping(), 0, 0, 1.001, None, False),
    (GradientMapping(), 3, 0, 0.25, None, True),
    (GradientMapping(), 3, 99, 0.251, None, False),
    (GradientMapping(scale=4.0), 3, 0, 1.0, None, True),
    (GradientMapping(scale=4.0), 3, 0, 1.01, None, False),
    (GradientMapping(power=2.0), 3, 0, 0.0625, None, True),
    (GradientMapping(power=2.0), 3, 0, 0.0626, None, False),
    (GradientMapping(), 0, 99, None, None, False),
    (InnerSteps(), 2, 2, None, None, False),
    (InnerSteps(), 2, 3, None, None, True),
    (InnerSteps(), 2, 4, 9.0, None, True),
    (InnerSteps(lambda t: 0.1 * t), 0, 0, None, None, True),
    (InnerSteps(lambda t: 0.1 * t), 11, 1, None, None, False),
    (InnerSteps(lambda t: 0.1 * t), 11, 2, None, None, True),
    (FixedSteps(0), 5, 0, None, None, True),
    (FixedSteps(15), 5, 14, 0.0, None, False),
    (FixedSteps(15), 0, 15, None, None, True),
    (FixedAccuracy(0.5), 0, 0, 0.25, None, True),
    (FixedAccuracy(0.5), 9, 9, 0.26, None, False),
    (FixedAccuracy(0.5), 9, 9, None, None, False),
    (RelativeAccuracy(0.25), 0, 0, 1.0, 4.0, True),
    (RelativeAccuracy(0.25), 0, 0, 1.01, 4.0, False),
    (RelativeAccuracy(0.25), 0, 0, None, 4.0, False),
    (RelativeAccuracy(0.25), 0, 0, 0.0, None, False),
    (RelativeAccuracy(0.25, tol=0.5), 0, 0, 0.25, 0.0, True),
    (RelativeAccuracy(0.25, tol=0.5), 0, 0, 0.26, 0.0, False),
]


@pytest.mark.parametrize(("rule", "t", "k", "grad_sq_y", "grad_sq_x", "answer"), TABLE)
def test_a_rule_answers(rule, t, k, grad_sq_y, grad_sq_x, answer) -> None:
    assert rule(InnerState(t, k, grad_sq_y, grad_sq_x)) is answer


@pytest.mark.parametrize(
    ("count", "limits"),
    [
        ("linear", [1, 2, 3, 4, 5]),
        (("log", 2), [1, 1, 2, 5, 9]),
        (("log", 1), [1, 1, 3, 5, 7]),
        (("power", 2), [1, 4, 9, 16, 25]),
        (("power", 0.5), [1, 2, 2, 2, 3]),
        (lambda t: 10 * t, [0, 10, 20, 30, 40]),
    ],
)
def test_the_number_of_inner_steps_grows_as_told(count, limits) -> None:
    rule = InnerSteps(count)
    assert [rule.limit(t) for t in range(5)] == limits
    fired_at = [next(k for k in range(99) if rule(InnerState(t, k))) for t in range(5)]
    assert fired_at == limits


def test_a_count_stops_before_a_gradient_is_known_and_a_conjunction_waits_for_it() -> None:
    before = InnerState(t=0, k=2)
    assert (FixedSteps(2) | GradientMapping())(before) is True
    assert (GradientMapping() | FixedSteps(2))(before) is True
    assert (FixedSteps(2) & GradientMapping())(before) is False
    assert (FixedSteps(2) & GradientMapping())(InnerState(0, 2, 0.5)) is True
    assert (FixedSteps(2) & GradientMapping())(InnerState(0, 1, 0.5)) is False


def test_rows_are_answered_one_by_one() -> None:
    rows = torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64)
    state = InnerState(3, 2, rows, torch.tensor([1.0, 4.0, 1.0], dtype=torch.float64))
    for rule, answer in [
        (GradientMapping(), [True, False, False]),
        (FixedAccuracy(0.6), [True, True, False]),
        (RelativeAccuracy(0.1), [True, True, False]),
        (GradientMapping() | RelativeAccuracy(0.5), [True, True, True]),
        (GradientMapping() | FixedSteps(3), [True, False, False]),
        (FixedSteps(3) | GradientMapping(), [True, False, False]),
        (FixedSteps(2) | GradientMapping(), [True, True, True]),
        (FixedAccuracy(0.6) & GradientMapping(), [True, False, False]),
        (FixedAccuracy(0.6) & FixedSteps(3), [False, False, False]),
        (FixedSteps(2) & FixedAccuracy(0.6), [True, True, False]),
    ]:
        assert rule(state).tolist() == answer, str(rule)


def test_the_share_is_halved_unless_the_norm_fell_by_a_tenth() -> None:
    rule = RelativeAccuracy(theta=0.8)
    shares = []
    for norm in (10.0, 8.99, 8.98, 9.5, 8.54, 8.54, 0.1):
        rule.observe_x_gradient(norm**2)
        shares.append(rule.theta)
    # first: nothing to compare with; 8.99 fell by 10.1 %; 8.54 is 10.1 % below 9.5
    assert shares == [0.8, 0.8, 0.4, 0.2, 0.2, 0.1, 0.1]


def test_every_row_has_its_own_share() -> None:
    rule = RelativeAccuracy(theta=0.8)
    for squares in ([1.0, 1.0], [0.5, 0.9], [0.1, 0.1]):
        rule.observe_x_gradient(torch.tensor(squares, dtype=torch.float64))
    assert rule.theta.tolist() == [0.8, 0.4]


@pytest.mark.parametrize(
    "join", [lambda rule: rule, lambda r: FixedSteps(9) | r, lambda r: (r & FixedSteps(1)) | r]
)
def test_the_memory_of_a_relative_rule_is_saved(join) -> None:
    old, new = RelativeAccuracy(0.8), RelativeAccuracy(0.8)
    used, loaded = join(old), join(new)
    assert used.needs_x_gradient
    used.observe_x_gradient(1.0)
    used.observe_x_gradient(0.9)
    loaded.load_state_dict(used.state_dict())
    assert new.theta == old.theta
    for rule in (used, loaded):
        rule.observe_x_gradient(0.9)
    assert new.theta == old.theta < 0.4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientMapping(0.0), "scale"),
        (lambda: GradientMapping(power=-1.0), "power"),
        (lambda: FixedAccuracy(0.0), "tol"),
        (lambda: FixedSteps(-1), "num_steps"),
        (lambda: InnerSteps("squared"), "count"),
        (lambda: InnerSteps(("power", -1)), "exponent"),
        (lambda: RelativeAccuracy(0.0), "theta"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
