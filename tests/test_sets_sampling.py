"""The distribution of the samples."""

import pytest
import scipy.stats
import torch

from neada.sets import Box, L1Ball, L2Ball, LinfBall, NonNegative, WholeSpace
from set_cases import INF, vector


def assert_uniform(values):
    # A fixed seed; a wrong law at 20,000 values has p below 1e-10.
    assert scipy.stats.kstest(values.numpy(), "uniform").pvalue > 1e-3


def test_samples_are_uniform():
    generator, n = torch.Generator().manual_seed(0), 3
    like = torch.zeros(20_000, n, dtype=torch.float64)
    # In a ball the share of the volume within a radius is the n-th power of its share.
    for ball, order in [(L2Ball, 2), (L1Ball, 1), (LinfBall, INF)]:
        points = ball(2.0, per_sample=True).sample(like, generator) / 2.0
        assert_uniform(torch.linalg.vector_norm(points, order, dim=1) ** n)
        # Each octant is equally likely: 8 cells of 2500.
        octant = (points > 0).double() @ vector(1.0, 2.0, 4.0)
        assert scipy.stats.chisquare(octant.long().bincount(minlength=8).numpy()).pvalue > 1e-3
    # Each coordinate of the unit ball in three dimensions has density 3/4 (1 - x^2).
    x = L2Ball(1.0, per_sample=True).sample(like, generator)[:, 0]
    assert_uniform((2 + 3 * x - x**3) / 4)
    assert_uniform((Box(-1.0, 3.0).sample(like, generator).reshape(-1)[:20_000] + 1) / 4)


def test_samples_without_bounds_are_projected_normals():
    like, generator = torch.zeros(20_000, dtype=torch.float64), torch.Generator().manual_seed(0)
    assert scipy.stats.kstest(WholeSpace().sample(like, generator).numpy(), "norm").pvalue > 1e-3
    halves = NonNegative().sample(like, generator)
    positive = halves[halves > 0]
    assert len(positive) == pytest.approx(10_000, abs=400)  # within 5 standard deviations
    assert scipy.stats.kstest(positive.numpy(), "halfnorm").pvalue > 1e-3
