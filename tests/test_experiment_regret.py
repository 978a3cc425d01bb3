"""Theorem 4's experiment: the rounds against the optimizer and a plain loop."""

import numpy as np
import pytest

from reproduction import regret
from reproduction.experiment import Record
from reproduction.regret import Learners, play


def signs(num_rounds: int, num_rows: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, (num_rounds, num_rows)) * 2.0 - 1.0


def played_by_hand(learner: Learners, targets: np.ndarray) -> tuple[np.ndarray, float]:
    """Algorithm 4 on one row: the points and the last v."""
    x, v, points = learner.start, learner.v0, []
    for target in targets:
        points.append(x)
        gradient = (x / learner.scale - target) / learner.scale
        v += gradient**2
        x = float(
            np.clip(x - learner.lr[0] * gradient / v**learner.alpha, -learner.scale, learner.scale)
        )
    return np.array(points), v


ONE = [
    Learners(0.25, np.array([1.0])),
    Learners(0.5, np.array([0.3]), 0.5, -1.0),
    Learners(0.75, np.array([20.0]), 1e-2, 2.0, 10.0),
]


@pytest.mark.parametrize("learner", ONE, ids=lambda one: str(one.alpha))
def test_the_rounds_are_algorithm_4(learner: Learners) -> None:
    targets = signs(300, 1)
    regrets, sums = play(targets, learner, np.array([7, 300]))
    points, v = played_by_hand(learner, targets[:, 0])
    grid = np.linspace(-1.0, 1.0, 200_001)
    for number, rounds in enumerate((7, 300)):
        z = targets[:rounds, 0]
        loss = 0.5 * ((points[:rounds] / learner.scale - z) ** 2).sum()
        fixed = sum(0.5 * (z == sign).sum() * (grid - sign) ** 2 for sign in (-1.0, 1.0))
        assert regrets[number, 0] == pytest.approx(loss - fixed.min(), abs=1e-6)
    assert sums[-1, 0] == pytest.approx(v, rel=1e-12)


def test_stretching_the_problem_changes_nothing_but_the_units() -> None:
    stretch = 1e3
    targets = signs(200, 1)
    plain = Learners(0.5, np.array([0.01]))
    stretched = Learners(0.5, np.array([0.01 * stretch]), stretch**-2, stretch, stretch)
    (first, _), (second, _) = (play(targets, one, np.array([200])) for one in (plain, stretched))
    assert second[0, 0] == pytest.approx(first[0, 0], rel=1e-12)


def laws(exponents: dict[float, float], factor: float = 1.0) -> list[Record]:
    """Records whose regret follows a given power of T, or a logarithm, exactly."""
    rounds = np.unique(np.geomspace(10, 1e5, 60).astype(int))
    records = []
    for config in regret.configs("standard", seeds=range(2)):
        rows: list[dict[str, object]] = []
        for share in config.lr_shares:
            exponent = exponents.get(config.alpha if config.alpha < 1.0 else share)
            law = rounds**exponent if exponent is not None else 8.0 / 7.0 * np.log(rounds)
            rows += [
                {
                    "lr_share": share,
                    "rounds": int(t),
                    "regret": [factor * value] * 2,
                }
                for t, value in zip(rounds, law.tolist(), strict=True)
            ]
        records.append(Record(config, rows))
    return records


RIGHT = {0.25: 0.75, 0.5: 0.5, 0.75: 0.25, 0.02: 0.9, 0.05: 0.7, 0.1: 0.3}


def test_exact_laws_hold_and_wrong_ones_fail() -> None:
    assert {claim.result for claim in regret.claims(laws(RIGHT))} == {"supported"}
    flips = {
        "regret/exponent-0.25": laws({**RIGHT, 0.25: 0.85}),
        "regret/exponent-0.5": laws({**RIGHT, 0.5: 0.4}),
        "regret/exponent-0.75": laws({**RIGHT, 0.75: 0.4}),
        "regret/small-lr-0.02": laws({**RIGHT, 0.02: 0.5}),
        "regret/small-lr-0.1": laws({**RIGHT, 0.1: 0.9}),
        "regret/logarithm": laws(RIGHT, factor=2.0),
    }
    for name, records in flips.items():
        verdicts = {claim.id: claim.result for claim in regret.claims(records)}
        assert verdicts[name] == "not supported", name
