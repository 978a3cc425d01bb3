"""The lemma's experiment against plain loops over single numbers, and its verdicts."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from neada.runs import RunFolder
from reproduction import lemma
from reproduction.experiment import Record

FAMILIES = ("adam", "amsgrad", "adagrad", "gda")


def small(family: str) -> lemma.Config:
    (config,) = (c for c in lemma.configs("quick") if c.family == family)
    return replace(config, num_l=3, num_r=11, num_steps=200)


def recorded(config: lemma.Config, folder: Path) -> Record:
    run = RunFolder(folder / config.family)
    run.start(asdict(config))
    lemma.run(config, run)
    run.finish()
    return Record(config, run.rows())


def norms_of_one_run(family: str, strength: float, r: float, num_steps: int) -> list[float]:
    """Algorithm 1 on one quadratic, |grad_x| relative to the start before every step."""
    lr_x = 1.0 / (strength**2 + r) if family == "gda" else 0.2 / r
    w, rate = [1.0 / strength, 0.0], [-lr_x, lr_x * r]
    mean, square, largest = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    norms = []
    for _ in range(num_steps + 1):
        gap = strength * w[0] - w[1]
        norms.append(abs(gap))
        for i, gradient in enumerate((-strength * gap, gap)):
            if gradient == 0.0:
                continue
            beta = 0.9 if family in ("adam", "amsgrad") else 0.0
            mean[i] = beta * mean[i] + (1.0 - beta) * gradient
            if family == "gda":
                root = 1.0
            elif family == "adagrad":
                square[i] += gradient**2
                root = math.sqrt(square[i])
            else:
                square[i] = 0.999 * square[i] + 0.001 * gradient**2
                largest[i] = max(largest[i], square[i])
                root = math.sqrt(square[i] if family == "adam" else largest[i])
            w[i] += rate[i] * mean[i] / root
    return norms


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_is_one_run_of_algorithm_1(family: str, tmp_path: Path) -> None:
    record = recorded(small(family), tmp_path)
    strengths, ratios = np.geomspace(0.1, 10.0, 3), np.geomspace(0.003, 300.0, 11)
    for i, strength in enumerate(strengths):
        for j in (0, 4, 6, 10):
            expected = norms_of_one_run(family, float(strength), float(ratios[j]), 200)
            rows = [row for row in record.rows if math.isclose(row["L"], strength)]
            assert len(rows) == len(record.rows) // 3, i
            for row in rows:
                norm, found = expected[row["steps"]], row["relative"][j]
                if max(expected[: row["steps"]], default=0.0) > 1e12:
                    norm = math.inf  # rows that have diverged are frozen
                assert found == pytest.approx(norm, rel=1e-8, abs=1e-13)


def test_gda_follows_the_closed_form(tmp_path: Path) -> None:
    record = recorded(small("gda"), tmp_path)
    ratios = np.geomspace(0.003, 300.0, 11)
    for row in record.rows:
        if row["steps"] <= 14:
            expected = (2.0 * row["L"] ** 2 / (row["L"] ** 2 + ratios)) ** row["steps"]
            clear = expected > 1e-3
            np.testing.assert_allclose(np.array(row["relative"])[clear], expected[clear], rtol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_moves_on_the_border(family: str, tmp_path: Path) -> None:
    record = recorded(small(family), tmp_path)
    assert {row["border"] for row in record.rows} != {0.0}
    assert all(row["border"] == pytest.approx(1.0, abs=1e-11) for row in record.rows)


def test_every_claim_holds_and_each_flips_with_its_number(tmp_path: Path) -> None:
    records = [recorded(replace(small(f), num_r=61), tmp_path) for f in FAMILIES]
    assert {c.result for c in lemma.claims(records)} == {"supported"}
    assert len(lemma.claims(records)) == 8

    def verdicts(column: str, factor: float) -> dict[str, str]:
        """The claims when a column of every run is multiplied by a factor."""
        changed = [
            Record(r.config, [{**row, column: scaled(row[column], factor)} for row in r.rows])
            for r in records
        ]
        return {c.id: c.result for c in lemma.claims(changed)}

    endless = verdicts("relative", math.inf)
    assert all(endless[f"lemma/{f}-border"] == "not supported" for f in FAMILIES)
    assert all(endless[f"lemma/{f}-constant"] == "supported" for f in FAMILIES)
    moved = verdicts("border", 1.0 + 1e-8)
    assert all(moved[f"lemma/{f}-constant"] == "not supported" for f in FAMILIES)


def scaled(number: object, factor: float) -> object:
    if isinstance(number, list):
        return [scaled(one, factor) for one in number]
    assert isinstance(number, float)
    return number * factor if number * factor == number * factor else math.inf
