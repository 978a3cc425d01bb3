"""The corrections: their computations against closed forms, and their claims."""

from dataclasses import asdict

import numpy as np
import pytest

from neada.runs import RunFolder
from neada.stopping import FixedSteps
from reproduction import corrections, errata
from reproduction.corrections import CORRECTIONS
from reproduction.experiment import Record

QUICK = "ABDEFGIJKL"  # the others take several seconds each


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> list[Record]:
    folder = tmp_path_factory.mktemp("errata")
    found = []
    for letter in QUICK:
        config = errata.Config(letter)
        run = RunFolder(folder / config.label)
        run.start(asdict(config))
        errata.run(config, run)
        run.finish()
        found.append(Record(config, run.rows()))
    return found


def test_every_correction_is_confirmed(records) -> None:
    found = errata.claims(records)
    for claim in found:
        assert claim.result == "supported", claim
    assert {claim.sentence[0] for claim in found} == set(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("letter", sorted(set(CORRECTIONS) - set(QUICK)))
def test_the_longer_corrections_are_confirmed(letter: str, tmp_path) -> None:
    run = RunFolder(tmp_path / "run")
    run.start({})
    errata.run(errata.Config(letter), run)
    run.finish()
    found = errata.claims([Record(errata.Config(letter), run.rows())])
    verdicts = {claim.result for claim in found}
    assert verdicts == {"supported"}


def test_a_wrong_number_is_not_confirmed(records) -> None:
    wrong = []
    for record in records:
        rows = [
            {**row, "measured": 1e9 if row["relation"] in ("<", "<=", "between") else -1e9}
            for row in record.rows
            if "relation" in row
        ]
        wrong.append(Record(record.config, rows))
    verdicts = {claim.result for claim in errata.claims(wrong)}
    assert verdicts == {"not supported"}


def test_the_panels_have_the_letters_of_the_list(records) -> None:
    titles = [axes.get_title() for axes in errata.figure(records).axes]
    letters = [title[0] for title in titles if title]
    assert letters == [letter for letter in QUICK if CORRECTIONS[letter].panel[0]]
    (legend,) = errata.figure(records).legends
    assert len(legend.get_texts()) <= 8


def test_the_counterexample_to_theorem_1_by_hand(records) -> None:
    """Z = T and E = T / (2 sqrt(v_0)) = 1/2, up to the drift of x; A is below 1e-3."""
    total, constant, error = corrections._reflecting_run(100, FixedSteps(1))
    np.testing.assert_allclose(total, np.arange(1, 101), rtol=1e-4)
    np.testing.assert_allclose(error, total / 2000.0, rtol=1e-12)
    assert 2e-4 < constant[-1] < 1e-3
    (record,) = [record for record in records if record.config.letter == "A"]
    found = {row["name"]: row["measured"] for row in record.rows if "relation" in row}
    assert found["left"] == pytest.approx(1.0, abs=5e-4)
    assert found["printed"] == pytest.approx(0.739, abs=5e-4)
    assert found["corrected"] == pytest.approx(1.063, abs=5e-4)
