"""Projections against the reference values that come with the specification."""

import json
from pathlib import Path

import pytest
import torch

from neada.sets import Box, HalfSpace, L1Ball, L2Ball, LinfBall, NonNegative, Simplex

FIXTURES = (
    Path(__file__).parents[1].parent / "shared" / "reference" / "fixtures" / "projections.json"
)


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


@pytest.fixture
def reference():
    if not FIXTURES.exists():
        pytest.skip("the reference projections are not beside this checkout")
    return json.loads(FIXTURES.read_text(encoding="utf-8"))


def test_projections_agree_with_the_reference(reference):
    # The column "hyperplane" is left out: it is not one of our sets.
    lower, upper = reference["box"]
    columns = {
        "box": Box(lower, upper),
        "halfspace": HalfSpace(vector(*reference["halfspace_a"]), reference["halfspace_b"]),
        "l1_R1": L1Ball(1.0),
        "l2_R1": L2Ball(1.0),
        "linf_R1": LinfBall(1.0),
        "nonneg": NonNegative(),
        "simplex1": Simplex(1.0),
        "simplex2": Simplex(2.0),
    }
    for row in reference["cases"]:
        for name, one in columns.items():
            projected = one.project(vector(*row["v"])).tolist()
            # A few ulp of the result; half-space entries are differences of entries up to 1e8.
            assert projected == pytest.approx(row[name], rel=1e-14, abs=1e-15), (name, row["v"])


def test_per_sample_projections_agree_with_the_reference(reference):
    rows = reference["per_sample"]
    balls = L2Ball(vector(*rows["R"]), per_sample=True)
    projected = balls.project(torch.tensor(rows["W"], dtype=torch.float64))
    expected = torch.tensor(rows["out"], dtype=torch.float64)
    torch.testing.assert_close(projected, expected, rtol=1e-15, atol=0)  # a few ulp
