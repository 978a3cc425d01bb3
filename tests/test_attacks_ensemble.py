"""Square, the worst case over several attacks, and the warnings of masked gradients."""

import warnings

import pytest
import torch
from torch import Tensor

from attacked import NORMS, digits, largest_share, right
from neada.attacks import apgd, robust_accuracy, square
from neada.attacks.worst_case import PARTS, attack_in_turn

FEW = {"num_steps": 10, "num_targets": 2, "num_queries": 30}


SHORT: dict[str, dict[str, int]] = {"fgsm": {}, "pgd": {"num_steps": 5}, "apgd": {"num_steps": 5}}


def masked(points: Tensor) -> Tensor:
    """The digits' network behind rounded pixels: it has no gradient."""
    return digits()[0]((10.0 * points).round() / 10.0)


@NORMS
@pytest.mark.parametrize("shape", [(1, 8, 8), (64,)])
def test_square_breaks_samples_without_gradients_inside_the_ball(norm, shape) -> None:
    body, x, y = digits()
    x, y = x[:60].reshape(60, *shape), y[:60]
    eps = 0.2 if norm == "linf" else 1.0

    def model(points: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return body(points.reshape(-1, 1, 8, 8))

    z = square(model, x, y, eps, norm=norm, bounds=(0.0, 1.0), num_queries=200)
    assert 0.9 < largest_share(z, x, norm, eps) <= 1
    assert float(z.min()) >= 0.0 and float(z.max()) <= 1.0
    clean, left = (right(body, some.reshape(-1, 1, 8, 8), y) for some in (x, z))
    assert int(clean.sum()) - int(left.sum()) >= 10
    assert torch.equal(z[~clean], x[~clean])


@NORMS
def test_square_is_better_than_as_many_random_points(norm) -> None:
    model, x, y = digits()
    eps = 0.15 if norm == "linf" else 0.8
    options = {"norm": norm, "bounds": (0.0, 1.0)}
    few, many = (square(model, x, y, eps, num_queries=n, **options) for n in (1, 300))
    generator = torch.Generator().manual_seed(0)
    left = right(model, x, y)
    for _ in range(300):
        noise = torch.randn(x.shape, generator=generator)
        if norm == "linf":
            noise = eps * noise.sign()
        else:
            noise = eps * noise / noise.flatten(1).norm(dim=1)[:, None, None, None]
        left &= right(model, (x + noise).clamp(0.0, 1.0), y)
    num_few, num_many = (int(right(model, z, y).sum()) for z in (few, many))
    assert num_many < num_few and num_many < int(left.sum())


def test_square_counts_its_queries_and_loses_patience() -> None:
    sizes: list[int] = []

    def model(points: Tensor) -> Tensor:
        sizes.append(len(points))
        return torch.stack([0.0 * points.sum(1) + 1.0, 0.0 * points.sum(1)], 1)

    x, y = torch.rand(5, 6), torch.tensor([0, 0, 1, 0, 0])
    square(model, x, y, 0.1, num_queries=50)
    assert sizes == [5] + 50 * [4]  # one is wrong and asks nothing
    sizes.clear()
    square(model, x, y, 0.1, num_queries=600, patience=20)
    assert sizes == [5] + 500 * [4]  # 20 for a hundred, more for four
    sizes.clear()
    square(model, torch.rand(100, 6), torch.zeros(100).long(), 0.1, num_queries=50, patience=20)
    assert sizes == 21 * [100]


@NORMS
def test_the_ensemble_is_as_strong_as_each_of_its_attacks(norm) -> None:
    model, x, y = digits()
    eps = 0.1 if norm == "linf" else 0.5
    options = {"norm": norm, "bounds": (0.0, 1.0)}
    points, counts = attack_in_turn(model, x, y, eps, **options, **FEW)
    assert counts[0] == int(right(model, x, y).sum())
    assert list(counts) == sorted(counts, reverse=True)
    left = right(model, points, y)
    assert counts[-1] == int(left.sum())
    first = apgd(model, x, y, eps, num_steps=10, **options)
    assert counts[1] == int(right(model, first, y).sum())
    second = apgd(model, x, y, eps, loss="targeted-dlr", num_steps=10, num_targets=2, **options)
    assert not bool((left & ~right(model, first, y)).any())
    assert not bool((left & ~right(model, second, y)).any())
    assert counts[2] < counts[1]
    assert largest_share(points[:30], x[:30], norm, eps) <= 1


def test_accuracy_has_the_survivors_of_each_attack_and_tells_its_progress() -> None:
    model, x, y = digits()
    told: list[tuple[float, str]] = []
    batches = [(x[:80], y[:80]), (x[80:150], y[80:150])]
    found = robust_accuracy(
        model,
        batches,
        "ensemble",
        [0.05, 0.1],
        bounds=(0.0, 1.0),
        progress=lambda part, words: told.append((part, words)),
        **FEW,
    )
    for eps in (0.05, 0.1):
        left = found.survivors[eps]
        assert tuple(left) == PARTS
        assert left["square"] == round(150 * found.attacked[eps])
        assert left["apgd-ce"] >= left["apgd-targeted-dlr"] >= left["square"]
    parts = [part for part, _ in told]
    assert parts == sorted(parts) and parts[-1] == 1.0
    assert {words for _, words in told} == {*PARTS, "ensemble"}
    again = robust_accuracy(model, batches, "ensemble", [0.05, 0.1], bounds=(0.0, 1.0), **FEW)
    assert again == found


@pytest.mark.parametrize("attack", ["fgsm", "pgd", "apgd"])
def test_zero_gradients_are_warned_of(attack) -> None:
    _, x, y = digits()

    def few(points: Tensor) -> Tensor:
        """Masked for one row of fifteen."""
        is_masked = torch.arange(len(points)) % 15 == 0
        outputs = masked(points)
        return torch.where(is_masked[:, None], outputs, digits()[0](points))

    with pytest.warns(UserWarning, match="gradient"):
        robust_accuracy(masked, [(x, y)], attack, 0.1, bounds=(0.0, 1.0), **SHORT[attack])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        robust_accuracy(few, [(x, y)], attack, 0.1, bounds=(0.0, 1.0), **SHORT[attack])


def test_square_alone_can_give_masked_gradients_away() -> None:
    # Gradients that are not zero, and point the wrong way.
    model, x, y = digits()

    def misleading(points: Tensor) -> Tensor:
        rounded = (10.0 * points).round() / 10.0
        return model(rounded + 1e-3 * (points.detach() - points) + 0.0)

    with pytest.warns(UserWarning, match="Square") as caught:
        robust_accuracy(misleading, [(x, y)], "ensemble", 0.2, bounds=(0.0, 1.0), **FEW)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("attack", "options", "sentence"),
    [
        ("ensemble", {"num_queries": 0}, "num_queries"),
        ("ensemble", {"patience": 0}, "patience"),
        ("ensemble", {"num_steps": 0}, "num_steps"),
        ("ensemble", {"num_restarts": 1}, "num_restarts"),
        ("pgd", {"loss": "dlr"}, "loss"),
        ("ensembel", {}, "ensemble"),
    ],
)
def test_what_makes_no_sense_is_refused(attack, options, sentence) -> None:
    model, x, y = digits()
    with pytest.raises((ValueError, TypeError), match=sentence):
        robust_accuracy(model, [(x, y)], attack, 0.01, **options)
