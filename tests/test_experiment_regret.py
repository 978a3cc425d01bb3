"""Theorem 4's experiment: the rounds against the optimizer and a plain loop, the bound by hand."""

import numpy as np
import pytest
import torch

from neada.optim import GeneralizedAdaGrad
from neada.sets import Box
from reproduction import regret
from reproduction.experiment import Record
from reproduction.regret import Learners, play, proven_bound


def learners(*rows: tuple[float, float, float, float, float]) -> Learners:
    return Learners(*(np.array(column) for column in zip(*rows, strict=True)))


ROWS = learners((0.25, 1.0, 1.0, 1.0, 1.0), (0.5, 0.3, 0.5, -1.0, 1.0), (0.75, 2.0, 1.0, 0.2, 1.0))


def signs(num_rounds: int, num_rows: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, (num_rounds, num_rows)) * 2.0 - 1.0


def played_by_optimizer(
    alpha: float, lr: float, v0: float, start: float, scale: float, targets: np.ndarray
) -> tuple[list[float], float]:
    """The points and the last v, one gradient at a time."""
    x = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    optimizer = GeneralizedAdaGrad([x], lr, alpha=alpha, v0=v0, constraint=Box(-scale, scale))
    points, v = [], v0
    for target in targets:
        points.append(x.item())
        x.grad = (x.detach() / scale - target) / scale
        v += x.grad.item() ** 2
        optimizer.step()
    return points, v


@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_rounds_are_those_of_the_optimizer(row: int) -> None:
    targets = signs(300, 3)
    regrets, sums = play(targets, ROWS, np.array([7, 300]))
    numbers = [
        float(column[row]) for column in (ROWS.alpha, ROWS.lr, ROWS.v0, ROWS.start, ROWS.scale)
    ]
    points, v = played_by_optimizer(*numbers, targets[:, row])
    grid = np.linspace(-1.0, 1.0, 200_001)
    for number, rounds in enumerate((7, 300)):
        z = targets[:rounds, row]
        loss = 0.5 * ((np.array(points[:rounds]) - z) ** 2).sum()
        fixed = sum(0.5 * (z == sign).sum() * (grid - sign) ** 2 for sign in (-1.0, 1.0))
        assert regrets[number, row] == pytest.approx(loss - fixed.min(), abs=1e-6)
    assert sums[-1, row] == pytest.approx(v, rel=1e-12)


def test_stretching_the_problem_changes_nothing_but_the_units() -> None:
    stretch = 1e3
    targets = signs(200, 1)[:, 0]
    points, v = played_by_optimizer(0.5, 0.01 * stretch, stretch**-2, stretch, stretch, targets)
    both = learners(
        (0.5, 0.01, 1.0, 1.0, 1.0), (0.5, 0.01 * stretch, stretch**-2, stretch, stretch)
    )
    regrets, sums = play(np.stack([targets, targets], axis=1), both, np.array([200]))
    assert regrets[0, 1] == pytest.approx(regrets[0, 0], rel=1e-12)
    assert sums[0, 1] == pytest.approx(v, rel=1e-12)
    assert max(points) <= stretch


def test_the_bound_by_hand() -> None:
    # alpha = 1/2, lr = 1/2, v0 = 1, mu = 1, G = 2, D = 2, v_T = 9:
    # S <= 1 + 1/2 (4/2)^2 / (1/2)^3 = 17, B <= 2 - 1/2, and 2 lr = 1.
    rows = learners((0.5, 0.5, 1.0, 1.0, 1.0), (1.0, 4.0, 1.0, 1.0, 1.0))
    bound = proven_bound(rows, np.array([[9.0, np.e]]), 2.0)
    assert bound[0, 0] == pytest.approx(5.0**0.5 * 4.0 + 17.0 * 1.5 * 4.0 + 0.25 / 0.5 * 3.0)
    assert bound[0, 1] == pytest.approx((5.0 * 4.0 + 16.0) / 8.0)


def test_the_bound_in_other_units_is_the_same_number() -> None:
    stretch = 1e3
    rows = learners(
        (0.75, 0.1, 1.0, 1.0, 1.0), (0.75, 0.1 * stretch**0.5, stretch**-2, stretch, stretch)
    )
    bound = proven_bound(rows, np.array([[50.0, 50.0 / stretch**2]]), 2.0)[0]
    assert bound[1] == pytest.approx(bound[0], rel=1e-9)


def laws(exponents: dict[float, float], factor: float = 1.0) -> list[Record]:
    """Records whose regret follows a given power of T, or a logarithm, exactly."""
    rounds = np.unique(np.geomspace(10, 1e5, 60).astype(int))
    records = []
    for config in regret.configs("standard", seeds=range(2)):
        rows: list[dict[str, object]] = [{"deviation": 0.0}]
        for share in config.lr_shares:
            exponent = exponents.get(config.alpha if config.alpha < 1.0 else share)
            law = rounds**exponent if exponent is not None else 8.0 / 7.0 * np.log(rounds)
            rows += [
                {
                    "lr_share": share,
                    "rounds": int(t),
                    "regret": [factor * value] * 2,
                    "bound": [1e4 if share == 1.0 or config.alpha < 1.0 else 1.0] * 2,
                }
                for t, value in zip(rounds, law.tolist(), strict=True)
            ]
        records.append(Record(config, rows))
    return records


RIGHT = {0.25: 0.75, 0.5: 0.5, 0.75: 0.25, 0.02: 0.9, 0.05: 0.7, 0.1: 0.3}


def test_exact_laws_hold_and_wrong_ones_fail() -> None:
    assert {claim.verdict for claim in regret.claims(laws(RIGHT))} == {"holds"}
    flips = {
        "regret/exponent-0.25": laws({**RIGHT, 0.25: 0.85}),
        "regret/exponent-0.5": laws({**RIGHT, 0.5: 0.4}),
        "regret/exponent-0.75": laws({**RIGHT, 0.75: 0.4}),
        "regret/small-lr-0.02": laws({**RIGHT, 0.02: 0.5}),
        "regret/small-lr-0.1": laws({**RIGHT, 0.1: 0.9}),
        "regret/below-threshold": laws({**RIGHT, 0.02: -0.1}),
        "regret/benign": laws({**RIGHT, 0.3: 0.5}),
        "regret/logarithm": laws(RIGHT, factor=2.0),
        "regret/bound": laws(RIGHT, factor=1e3),
    }
    for name, records in flips.items():
        verdicts = {claim.id: claim.verdict for claim in regret.claims(records)}
        assert verdicts[name] == "fails", name


def test_a_transcription_that_deviates_is_found_out() -> None:
    records = laws(RIGHT)
    records[0].rows[0]["deviation"] = 1e-3
    verdicts = {claim.id: claim.verdict for claim in regret.claims(records)}
    assert verdicts["regret/same-steps"] == "fails"
