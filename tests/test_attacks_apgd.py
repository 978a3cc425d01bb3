"""APGD: step by step against a plain transcription, exact about its ball, and who leaves when."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

from attacked import NORMS, digits, largest_share
from neada.attacks import apgd, pgd, robust_accuracy
from neada.attacks.auto_pgd import checkpoints
from references import apgd as reference

SIZE, HIDDEN = 6, 8


@functools.cache
def weights(num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(num_classes)
    return (
        2.0 * random.normal(size=(HIDDEN, SIZE)),
        random.normal(size=HIDDEN),
        random.normal(size=(num_classes, HIDDEN)),
    )


def network(points: torch.Tensor, num_classes: int) -> torch.Tensor:
    first, bias, last = (torch.from_numpy(array) for array in weights(num_classes))
    return torch.sin(points @ first.T + bias) @ last.T


def outputs_and_jacobian(x: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    first, bias, last = weights(num_classes)
    angle = first @ x + bias
    return last @ np.sin(angle), last @ (np.cos(angle)[:, None] * first)


def samples(num_classes: int, num: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and the classes that the network gives them."""
    x = np.random.default_rng(7).uniform(0.1, 0.9, size=(num, SIZE))
    outputs = np.stack([outputs_and_jacobian(row, num_classes)[0] for row in x])
    return x, outputs.argmax(1)


def by_reference(
    x: np.ndarray, y: int, loss: str, num_classes: int, norm: str, eps: float, num_steps: int
) -> list[tuple[np.ndarray, list[np.ndarray], bool]]:
    """For each target class of the targeted loss, or once: the result, all points, is it fooled."""
    clean, _ = outputs_and_jacobian(x, num_classes)
    likely = [i for i in np.argsort(-clean) if i != y][:2]
    runs = []
    for target in likely if loss == "targeted-dlr" else [None]:

        def value(z: np.ndarray, target: int | None = target) -> tuple[float, np.ndarray]:
            if target is not None:
                return reference.targeted_dlr(z, y, target)
            return (reference.dlr if loss == "dlr" else reference.cross_entropy)(z, y)

        found, seen = reference.apgd(
            lambda point: outputs_and_jacobian(point, num_classes),
            value,
            lambda z: int(z.argmax()) != y,
            x,
            eps,
            norm,
            (0.0, 1.0),
            num_steps,
        )
        is_fooled = int(outputs_and_jacobian(found, num_classes)[0].argmax()) != y
        runs.append((found, seen, is_fooled))
        if is_fooled:
            break
    return runs


@NORMS
@pytest.mark.parametrize("loss", ["ce", "dlr", "targeted-dlr"])
@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("num_steps", [10, 60])
def test_every_point_is_that_of_the_formulas(norm, loss, num_classes, num_steps) -> None:
    x, y = samples(num_classes)
    eps = 0.02 if norm == "linf" else 0.05
    # At the top of a hill in l2 losses agree to all digits while points differ by the root of that.
    close = functools.partial(
        np.testing.assert_allclose, rtol=0, atol=1e-10 if norm == "linf" else 1e-7
    )
    num_whole = 0
    for row, target in zip(x, y, strict=True):
        seen: list[torch.Tensor] = []

        def model(points: torch.Tensor, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            seen.append(points.detach())
            return network(points, num_classes)

        runs = by_reference(row, int(target), loss, num_classes, norm, eps, num_steps)
        inputs, targets = torch.from_numpy(row[None]), torch.tensor([target])
        options = {"norm": norm, "bounds": (0.0, 1.0), "loss": loss, "num_steps": num_steps}
        if num_classes == 2 or loss != "targeted-dlr":
            found = apgd(model, inputs, targets, eps, **options)
            # The input is looked at before, and the result after the steps.
            points = torch.cat(seen[1 + (loss == "targeted-dlr") : -1]).numpy()
            expected = np.stack(runs[0][1])
            assert len(runs) == 1 and points.shape == expected.shape
            close(points, expected)
            close(found.numpy()[0], runs[0][0])
        else:  # several ascents at once, one towards each class
            found = apgd(model, inputs, targets, eps, num_targets=2, **options)
            for k, points in enumerate(seen[2:-1]):
                still = [points for _, points, _ in runs if len(points) > k]
                if not any(fooled for *_, fooled in runs):
                    expected = np.stack([points[k] for points in still])
                    close(points.numpy(), expected)
            is_fooled = int(network(found, num_classes).argmax()) != target
            assert is_fooled == runs[-1][2]
        num_whole += not runs[-1][2]
    assert num_whole >= 2  # not all are broken before there is anything to compare


def test_the_checkpoints_are_those_of_the_formula() -> None:
    assert checkpoints(100) == [0, 22, 41, 57, 70, 80, 87, 93, 99]
    for num_steps in [*range(1, 130), 200, 1000]:
        assert checkpoints(num_steps) == reference.checkpoints(num_steps)
    assert checkpoints(1000)[1:4] == [220, 410, 570]
    assert checkpoints(5) == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["plain", "robust"])
@NORMS
def test_apgd_is_as_strong_as_forty_steps_of_pgd(kind, norm) -> None:
    model, x, y = digits(kind)
    eps = 0.1 if norm == "linf" else 0.5
    options = {"norm": norm, "bounds": (0.0, 1.0)}
    weak = robust_accuracy(model, [(x, y)], "pgd", eps, num_steps=40, **options)
    for loss in ("ce", "dlr", "targeted-dlr"):
        strong = robust_accuracy(model, [(x, y)], "apgd", eps, loss=loss, **options)
        assert strong.attacked[eps] <= weak.attacked[eps] + 0.005
    assert 0.05 < weak.attacked[eps] < weak.clean - 0.05  # there is something to break and to leave


@NORMS
def test_points_are_exactly_in_the_ball_and_the_range(norm) -> None:
    model, x, y = digits("robust")
    eps = 0.1 if norm == "linf" else 0.5
    options = {"norm": norm, "bounds": (0.0, 1.0), "num_steps": 12, "num_restarts": 1}
    z = apgd(model, x[:40], y[:40], eps, loss="dlr", **options)
    assert 0.99 < largest_share(z, x[:40], norm, eps) <= 1
    assert float(z.min()) >= 0.0 and float(z.max()) <= 1.0


def test_what_is_wrong_already_is_left_as_it_is_and_costs_nothing() -> None:
    model, x, y = digits("robust")
    shifted = torch.where(torch.arange(len(y)) % 3 > 0, y, (y + 1) % 10)
    wrong = model(x).argmax(1) != shifted
    sizes: list[int] = []
    handle = model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    given = x[:100].clone()
    z = apgd(model, x[:100], shifted[:100], 0.02, num_steps=5)
    handle.remove()
    assert torch.equal(x[:100], given)  # nothing is written to
    assert torch.equal(z[wrong[:100]], x[:100][wrong[:100]])
    num_left = 100 - int(wrong[:100].sum())
    assert sizes[0] == 100 and max(sizes[1:]) == num_left < 70
    all_wrong = (model(x).argmax(1) + 1) % 10
    assert torch.equal(apgd(model, x, all_wrong, 0.1), x)


def test_a_sample_leaves_with_its_first_misclassified_point() -> None:
    model, x, y = digits("plain")
    sizes: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda _, inputs: sizes.append(len(inputs[0])) if inputs[0].requires_grad else None
    )
    z = apgd(model, x[:100], y[:100], 0.1, bounds=(0.0, 1.0), num_steps=20)
    handle.remove()
    left = int((model(z).argmax(1) == y[:100]).sum())
    assert sizes == sorted(sizes, reverse=True)
    assert left <= sizes[-1] < sizes[0]


@NORMS
def test_one_sample_alone_goes_the_way_it_goes_in_a_batch(norm) -> None:
    x, y = samples(5)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    options = {"norm": norm, "bounds": (0.0, 1.0), "num_steps": 30}

    def model(points: torch.Tensor) -> torch.Tensor:
        return network(points, 5)

    together = apgd(model, inputs, targets, 0.05, **options)
    for i in range(len(x)):
        alone = apgd(model, inputs[i : i + 1], targets[i : i + 1], 0.05, **options)
        torch.testing.assert_close(alone[0], together[i], rtol=0.0, atol=1e-7)


def test_the_generator_decides_and_restarts_do_not_weaken() -> None:
    model, x, y = digits("robust")
    run = functools.partial(apgd, model, x, y, 0.1, bounds=(0.0, 1.0), num_steps=3)
    state = torch.get_rng_state()
    points = [
        run(num_restarts=2, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(points[0], points[1]) and not torch.equal(points[0], points[2])
    assert torch.equal(run(num_restarts=1), run(num_restarts=1))
    wrong = [model(run(num_restarts=n)).argmax(1) != y for n in (0, 1, 3)]
    assert not bool((wrong[0] & ~wrong[1]).any() or (wrong[1] & ~wrong[2]).any())


def test_a_loss_of_ones_own_and_targets_that_are_no_classes() -> None:
    x, y = torch.tensor([[2.0], [2.0]]), torch.tensor([[1.0], [3.0]])

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) ** 2).sum(1)

    assert apgd(lambda z: z, x, y, 0.5, loss=loss, num_steps=5).tolist() == [[2.5], [1.5]]
    assert pgd(lambda z: z, x, y, 0.5, loss=loss).tolist() == [[2.5], [1.5]]


MODEL, SOME_X, SOME_Y = nn.Linear(2, 3), torch.rand(3, 2), torch.tensor([0, 1, 0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"num_restarts": -1}, "num_restarts"),
        ({"num_targets": 0}, "num_targets"),
        ({"loss": "drl"}, "loss"),
        ({"eps": math.nan}, "eps"),
        ({"norm": "l1"}, "norm"),
    ],
)
def test_what_makes_no_sense_is_refused(options, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        apgd(**{"model": MODEL, "inputs": SOME_X, "targets": SOME_Y, "eps": 0.1, **options})
