"""The errata: their computations against closed forms and the library, their verdicts."""

import itertools
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from neada.optim import AdaptiveSGD
from neada.runs import RunFolder
from neada.steppers import Simultaneous
from reproduction import errata, errata_lemma, errata_methods, errata_regret
from reproduction.experiment import Record
from reproduction.regret import Learners

TINY = {
    "lemma-sign": 60,
    "lemma-average": 3000,
    "gda-step": 60,
    "regret-constant": 12_000,
    "regret-rate": 4000,
    "log-proposition": 100,
    "amsgrad-rebasing": 20,
    "stochastic-hypothesis": 100,
    "agnostic-solvers": 60,
    "criterion-units": 25,
    "criterion-text": 25,
}
NEEDS_MORE = {"regret-rate", "stochastic-hypothesis", "agnostic-solvers"}


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> list[Record]:
    folder = tmp_path_factory.mktemp("errata")
    found = []
    for config in errata.configs("quick"):
        config = replace(config, size=TINY[config.erratum])
        run = RunFolder(folder / config.label)
        run.start(asdict(config))
        errata.run(config, run, lambda part: None)
        run.finish()
        found.append(Record(config, run.rows()))
    return found


def measured(records: list[Record], erratum: str) -> dict[str, float]:
    (record,) = [r for r in records if r.config.erratum == erratum]
    return {row["measure"]: row["value"] for row in record.rows if "measure" in row}


def test_every_statement_is_judged_and_most_are_confirmed_already(records) -> None:
    for claim in errata.claims(records):
        assert claim.verdict != "not tested", claim.id
        if claim.id.split("/")[1] not in NEEDS_MORE:
            assert claim.verdict == "holds", claim


def test_a_wrong_number_flips_every_verdict() -> None:
    wrong = []
    for config in errata.configs("quick"):
        rows = []
        for statement in errata.ERRATA[config.erratum].statements:
            expected = statement.expected
            if isinstance(expected, tuple):
                value = expected[1] + 1.0
            else:
                value = expected + (1.0 if statement.relation in ("<", "<=") else -1.0)
            rows.append({"measure": statement.name, "value": value})
        wrong.append(Record(config, rows))
    assert {claim.verdict for claim in errata.claims(wrong)} == {"fails"}


@pytest.mark.parametrize("family", ["adagrad", "adam", "amsgrad"])
def test_the_lemmas_game_is_that_of_the_library(family: str) -> None:
    xs, ys, vs = errata_lemma._lemma_game(family, np.array([1.0, 3.0]), (1.0, 0.01), 30)
    for row, ratio in enumerate((1.0, 3.0)):
        x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
        y = torch.tensor([0.01], dtype=torch.float64, requires_grad=True)
        x_optimizer = AdaptiveSGD([x], 0.2 / ratio, family)
        stepper = Simultaneous(x_optimizer, AdaptiveSGD([y], 0.2, family, maximize=True))
        for _ in range(30):
            stepper.step(lambda x=x, y=y: (-0.5 * y * y + 2.0 * x * y - 2.0 * x * x).sum())
        assert xs[-1, row] == pytest.approx(x.item(), rel=1e-11)
        assert ys[-1, row] == pytest.approx(y.item(), rel=1e-11)
        name = "largest_second_moment" if family == "amsgrad" else "second_moment"
        assert vs[-1, row] == pytest.approx(x_optimizer.state[x][name].item(), rel=1e-11)


def test_gda_multiplies_its_gradient_by_the_same_number_every_step(records) -> None:
    growth = measured(records, "gda-step")
    for product in (1.9, 2.0, 2.1):
        assert growth[f"growth-{product:g}"] == pytest.approx(abs(1.0 - product) ** 60, rel=1e-6)


def test_the_printed_regret_bound_by_hand() -> None:
    # alpha = 1/2, lr = 1/2, v0 = 1, mu = 1, G = 2, D = 2, v_T = 9: the middle term is
    # 1/2 (2 / (1/2))^3 = 32, and 2 lr = 1.
    learner = Learners(0.5, np.array([0.5]))
    bound = errata_regret._printed_bound(learner, np.array([[9.0]]), 2.0)
    assert bound[0, 0] == pytest.approx(5.0**0.5 * 4.0 + 32.0 + 0.25 / 0.5 * 3.0)


def test_the_losses_switch_sides_at_half_time() -> None:
    targets = list(itertools.islice(errata_regret._switching(np.array([4.0])), 8))
    pairs = np.array(targets).reshape(4, 2).mean(axis=1)
    np.testing.assert_array_equal(pairs, [-1.0, -1.0, 1.0, 1.0])
    np.testing.assert_array_equal(np.abs(np.diff(targets, axis=0))[::2], 20.0)


def test_the_regret_at_half_the_threshold_follows_its_limit() -> None:
    # With E|g|^2 = 100, G^2 = 144 the step is rho/t with rho = 0.72, and the second half costs
    # T (2^(1-2 rho) - 1)/(1 - 2 rho) against T/2 for the best point.
    rho = 0.5 * 144.0 / 100.0
    limit = (2.0 ** (1.0 - 2.0 * rho) - 1.0) / (1.0 - 2.0 * rho) - 0.5
    rows = errata_regret._regret_rate(20_000)
    regret = [row["y"] for row in rows if row.get("curve") == "regret, G²/(2 mu)"]
    horizons = [row["x"] for row in rows if row.get("curve") == "regret, G²/(2 mu)"]
    growth = (regret[-1] - regret[-3]) / (horizons[-1] - horizons[-3])
    assert growth == pytest.approx(limit, rel=0.05)


def test_amsgrads_function_is_the_printed_maximum() -> None:
    squares, gamma = np.array([4.0, 0.0, 1.0, 0.5]), 0.999
    candidates = [
        gamma ** (m + 1) * 0.3
        + (1.0 - gamma) * sum(gamma ** (m - i) * squares[i] for i in range(m + 1))
        for m in range(4)
    ]
    assert errata_methods._printed_psi(0.3, squares) == pytest.approx(max(candidates), rel=1e-12)


def test_the_averaged_inner_error_is_that_of_the_weights(records) -> None:
    at = np.array([1, 2, 5])
    last, averaged = errata_methods._inner_errors(0.5, at, num_seeds=3)
    noise = torch.Generator().manual_seed(0)
    w, v, points = np.ones(3), np.ones(3), []
    for _ in range(5):
        draw = torch.randn((3, 1), dtype=torch.float64, generator=noise)
        gradient = w + draw.numpy()[:, 0]
        v = v + gradient**2
        w = w - gradient / np.sqrt(v)
        points.append(w)
    for number, count in enumerate(at):
        weights = np.arange(1, count + 1) / (count * (count + 1) / 2)
        mean = sum(weight * point for weight, point in zip(weights, points, strict=False))
        assert averaged[number] == pytest.approx((mean**2).mean(), rel=1e-10)
        assert last[number] == pytest.approx((points[count - 1] ** 2).mean(), rel=1e-10)


@pytest.mark.parametrize(("rate", "expected"), [(0.9, 1.85), (0.5, 1.85)])
def test_the_quotient_of_steps_of_a_linear_method(rate: float, expected: float) -> None:
    distances = 2.236 * rate ** np.arange(1, 400)
    assert errata_methods._steps_ratio(distances) == pytest.approx(expected, abs=0.06)
    assert np.isnan(errata_methods._steps_ratio(distances[:3]))
