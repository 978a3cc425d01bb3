"""Theorem 5's experiment: the runs against a plain transcription, the exponents on known laws."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from neada.runs import RunFolder
from reproduction import high_probability
from reproduction.experiment import Record


def records_of(tmp_path, num_seeds: int, num_outer: int) -> list[Record]:
    records = []
    for config in high_probability.configs("quick", seeds=range(num_seeds)):
        config = replace(config, num_outer=num_outer)
        run = RunFolder(tmp_path / config.label)
        run.start(asdict(config))
        high_probability.run(config, run)
        run.finish()
        records.append(Record(config, run.rows()))
    return records


def reference(num_seeds: int, num_outer: int, draw) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 3 with t + 1 steps of a fresh averaged AdaGrad-Norm, all seeds side by side."""
    x, y = np.full((num_seeds, 2), 1.0), np.zeros((num_seeds, 2))
    v_x = np.ones((num_seeds, 1))
    grads, errors = np.zeros(num_seeds), np.zeros(num_seeds)
    for t in range(num_outer):
        v_y, average = np.ones((num_seeds, 1)), y.copy()
        for k in range(t + 1):
            draw()
            gradient = np.tanh(x) - y + draw()
            v_y = v_y + (gradient**2).sum(axis=1, keepdims=True)
            y = np.clip(y + gradient / np.sqrt(v_y), -2.0, 2.0)
            average = average + 2.0 / (k + 2.0) * (y - average)
        y = average
        exact = 2.0 * x / (1.0 + x**2) + y * (1.0 - np.tanh(x) ** 2)
        grads += (exact**2).sum(axis=1)
        errors += ((y - np.tanh(x)) ** 2).sum(axis=1)
        gradient = exact + draw()
        draw()
        v_x = v_x + (gradient**2).sum(axis=1, keepdims=True)
        x = x - gradient / np.sqrt(v_x)
    return grads / num_outer, errors / num_outer


def test_the_runs_are_algorithm_3(tmp_path) -> None:
    gaussian, student = records_of(tmp_path, num_seeds=5, num_outer=8)
    size = (256, 2, 2)
    draws = np.stack([np.random.default_rng(seed).standard_normal(size) for seed in range(5)], 1)
    stream = (noise for call in draws for noise in call.swapaxes(0, 1))
    grads, errors = reference(5, 8, lambda: next(stream))
    np.testing.assert_allclose(gaussian.rows[-1]["grad_sq"], grads, rtol=1e-11)
    np.testing.assert_allclose(gaussian.rows[-1]["y_error_sq"], errors, rtol=1e-11)
    draws = np.stack([np.random.default_rng(seed).standard_t(1.5, size) for seed in range(5)], 1)
    heavy = (noise for call in draws for noise in call.swapaxes(0, 1))
    grads, _ = reference(5, 8, lambda: next(heavy))
    np.testing.assert_allclose(student.rows[-1]["grad_sq"], grads, rtol=1e-11)


def lawful(law, decay: float = 0.5, heavy_decay: float = 0.1, error_growth: float = 1.0):
    """Records whose quantiles at 1 - delta are T^-decay times a function of log(1/delta)."""
    records = []
    logs = -np.log((np.arange(4000) + 0.5) / 4000)
    sums = {1: 0.0, 2: 1.0, 4: 2.0, 8: 2.0 + error_growth}
    configs = high_probability.configs("quick", seeds=range(4000))
    for config, power in zip(configs, (decay, heavy_decay), strict=True):
        rows = [
            {
                "outer_steps": t,
                "grad_sq": (t**-power * law(logs)).tolist(),
                "y_error_sq": [total / t],
            }
            for t, total in sums.items()
        ]
        records.append(Record(replace(config, num_outer=8), rows))
    return records


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_the_exponents_of_power_laws_are_found(power: float) -> None:
    records = lawful(lambda logs: logs**power, decay=power)
    found = {claim.id.partition("/")[2]: claim for claim in high_probability.claims(records)}
    assert power < found["quantile-growth"].measured < power + 0.2  # the upper end
    assert found["tail"].measured == pytest.approx(-power, abs=1e-9)


def test_every_claim_can_fail() -> None:
    benign = lawful(lambda logs: 1.0 + 0.1 * logs)
    assert {claim.result for claim in high_probability.claims(benign)} == {"supported"}
    wild = lawful(lambda logs: np.exp(3.0 * logs), 0.2, 0.6, 1.6)
    assert {claim.result for claim in high_probability.claims(wild)} == {"not supported"}
