"""Vector algebra over lists of tensors, against numpy."""

import math

import numpy as np
import pytest
import torch

from neada import tensors


def lists(dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (4,), (4, 2, 2)]

    def draw() -> list[torch.Tensor]:
        return [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]

    return draw(), draw()


def flat(player: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([t.flatten() for t in player]).double().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_and_dot_are_those_of_the_long_vector(dtype: torch.dtype) -> None:
    a, b = lists(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14  # a piece is summed in its own dtype
    assert tensors.squared_norm(a) == pytest.approx(flat(a) @ flat(a), rel=tolerance)
    assert tensors.dot(a, b) == pytest.approx(flat(a) @ flat(b), rel=1e-13)


def test_norm_and_dot_of_each_row() -> None:
    a, b = lists()
    for i in range(4):
        row_a, row_b = [t[i] for t in a], [t[i] for t in b]
        assert tensors.squared_norm(a, rowwise=True)[i] == pytest.approx(
            tensors.squared_norm(row_a), rel=1e-13
        )
        assert tensors.dot(a, b, rowwise=True)[i] == pytest.approx(
            tensors.dot(row_a, row_b), rel=1e-13
        )


def test_float32_sums_are_accumulated_in_float64() -> None:
    """One large entry hides the small ones of its own piece from a float32 sum, and no others."""
    tensor = torch.full((3_000_000,), 1e-3)
    tensor[0] = 1e4
    expected = 1e8 + (len(tensor) - 1) * float(np.float32(1e-3)) ** 2
    hidden = tensors._CHUNK * 1e-6
    assert tensors.squared_norm([tensor]) == pytest.approx(expected, abs=1.01 * hidden)
    # 3e6 roundings of float64 at worst
    assert tensors.dot([tensor], [tensor.clone()]) == pytest.approx(expected, rel=1e-10)
    assert tensors.squared_norm([torch.tensor([1e30])]) == pytest.approx(1e60, rel=1e-6)
    assert tensors.squared_norm([torch.tensor([1e-30])]) == pytest.approx(1e-60, rel=1e-6)


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_of_any_size(size: float, dtype: torch.dtype) -> None:
    a, b = ([size * t for t in player] for player in lists(dtype))
    expected = np.sum((flat(a) - flat(b)) ** 2)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13  # differences are rounded to the dtype
    assert tensors.squared_distance(a, b) == pytest.approx(expected, rel=tolerance)
    rows = tensors.squared_distance(a, b, rowwise=True)
    assert float(rows.sum()) == pytest.approx(expected, rel=tolerance)
    assert tensors.squared_distance(a, a) == 0.0


def test_views_with_other_strides_are_not_mistaken_for_the_same() -> None:
    base = torch.arange(6.0)
    assert tensors.dot([base[::2]], [base[:3]]) == 0 * 0 + 2 * 1 + 4 * 2


@pytest.mark.parametrize("scale", [0.5, torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_by_one_number_or_one_per_row(
    scale: float | torch.Tensor, dtype: torch.dtype
) -> None:
    a, b = lists(dtype)

    def factor(t: torch.Tensor) -> float | torch.Tensor:
        if isinstance(scale, float):
            return scale
        return scale.to(dtype).reshape(4, *[1] * (t.dim() - 1))

    for update, expected in [
        (tensors.add_scaled_, [x + factor(x) * y for x, y in zip(a, b, strict=True)]),
        (tensors.interpolate_, [x + factor(x) * (y - x) for x, y in zip(a, b, strict=True)]),
    ]:
        changed = tensors.clone(a)
        update(changed, b, scale)
        torch.testing.assert_close(changed, expected)
    changed = tensors.clone(a)
    tensors.scale_(changed, scale)
    torch.testing.assert_close(changed, [x * factor(x) for x in a])


def test_difference_negative_clone_and_copy() -> None:
    a, b = lists()
    np.testing.assert_array_equal(flat(tensors.difference(a, b)), flat(a) - flat(b))
    np.testing.assert_array_equal(flat(tensors.negative(a)), -flat(a))
    copies = tensors.clone(a)
    tensors.copy_(copies, b)
    np.testing.assert_array_equal(flat(copies), flat(b))
    assert not np.array_equal(flat(a), flat(b))


def test_a_factor_beyond_float32_overflows_quietly() -> None:
    target = [torch.zeros(2)]
    tensors.add_scaled_(target, [torch.tensor([1.0, 0.0])], 1e300)
    assert math.isfinite(target[0][1])
    assert target[0][0] > 1e38


def test_the_overflow_of_a_norm_is_told_from_a_bad_entry() -> None:
    with pytest.raises(tensors.NonFiniteGradient, match="overflows"):
        tensors.raise_non_finite([None, torch.tensor([1e200], dtype=torch.float64)])
    with pytest.raises(tensors.NonFiniteGradient, match="value"):
        tensors.raise_non_finite([torch.zeros(1)], torch.tensor(math.inf))
    with pytest.raises(FloatingPointError, match="parameter"):
        tensors.raise_non_finite([torch.zeros(1), torch.tensor([math.nan, 0.0])])
