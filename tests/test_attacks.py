"""Attacks: against hand computation, exact about norms and ranges, and leaving no trace."""

import ast
import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neada.attacks
from attacked import NORMS, largest_share
from neada import models
from neada.attacks import fgsm, pgd, robust_accuracy
from neada.data import Batches

BOTH = pytest.mark.parametrize("attack", [fgsm, pgd])


@functools.cache
def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network with batch norm and dropout that separates four noisy 1x4x4 patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(4, 1, 4, 4, generator=generator)
    y = torch.arange(100) % 4
    noise = torch.randn(100, 1, 4, 4, generator=generator)
    x = (patterns[y] + 0.25 * noise).clamp(0.0, 1.0)
    body = models.make("small-cnn", (1, 4, 4), 4, seed=1)
    model = nn.Sequential(body, nn.Dropout(0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, x, y


def linear(weight: np.ndarray) -> nn.Module:
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    model.weight.data = torch.from_numpy(weight)
    return model


def gradient_by_hand(weight: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the cross-entropy of a linear model: (softmax - one hot) W."""
    scores = x @ weight.T
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return (shares - np.eye(len(weight))[y]) @ weight


def test_fgsm_on_a_linear_model_is_what_the_formula_says() -> None:
    random = np.random.default_rng(0)
    weight, x = random.normal(size=(3, 4)), random.normal(size=(6, 4))
    y = random.integers(0, 3, 6)
    gradient = gradient_by_hand(weight, x, y)
    arguments = linear(weight), torch.from_numpy(x), torch.from_numpy(y), 0.3
    expected = x + 0.3 * np.sign(gradient)
    np.testing.assert_allclose(fgsm(*arguments), expected, rtol=0, atol=1e-15)
    clipped = fgsm(*arguments, bounds=(-4.0, 4.0))
    np.testing.assert_allclose(clipped, np.clip(expected, -4.0, 4.0), rtol=0, atol=1e-15)
    norms = np.sqrt((gradient**2).sum(1, keepdims=True))
    expected = x + 0.3 * gradient / norms
    np.testing.assert_allclose(fgsm(*arguments, norm="l2"), expected, rtol=0, atol=1e-11)


@NORMS
def test_pgd_finds_the_maximum_of_a_linear_model(norm) -> None:
    # Two classes: the loss grows with <w, z>, so the worst point of the ball is known.
    random = np.random.default_rng(1)
    w = random.normal(size=8)
    x = random.normal(size=(5, 8))
    y = np.zeros(5, dtype=np.int64)
    dual = np.sign(w) if norm == "linf" else w / np.sqrt((w**2).sum())
    found = pgd(linear(np.stack([-w, w])), torch.from_numpy(x), torch.from_numpy(y), 0.4, norm=norm)
    np.testing.assert_allclose(found, x + 0.4 * dual, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@NORMS
@BOTH
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    eps=st.floats(1e-6, 3.0) | st.sampled_from([0.02, 0.05, 0.1, 0.3, 8 / 255]),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e3]),
    clip=st.booleans(),
)
def test_no_perturbation_is_larger_than_epsilon(
    attack, norm, dtype, seed, eps, scale, clip
) -> None:
    random = np.random.default_rng(seed)
    x = torch.from_numpy(scale * random.normal(size=(4, 6))).to(dtype)
    low, high = (2 * float(x.min()) - 0.1, 2 * float(x.max()) + 0.1) if clip else (None, None)
    model = linear(random.normal(size=(3, 6))).to(dtype)
    y = torch.from_numpy(random.integers(0, 3, 4))
    options = {"num_steps": 3} if attack is pgd else {}
    bounds = (low, high) if clip else None
    z = attack(model, x, y, eps, norm=norm, bounds=bounds, **options)
    assert z.dtype == dtype and z.shape == x.shape
    assert largest_share(z, x, norm, eps) <= 1
    if clip:
        assert low <= float(z.min()) and float(z.max()) <= high


def test_a_range_that_float32_cannot_express_is_not_left() -> None:
    low, high = 0.1, 0.7  # float32(0.7) is below, float32(0.1) above; their negatives are not
    x = torch.tensor([[0.3, -0.3]])
    weight = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    y = torch.tensor([0])
    for sign, bounds in ((1.0, (low, high)), (-1.0, (-high, -low))):
        center = sign * x.abs()
        for target in (y, 1 - y):
            z = fgsm(lambda v: v @ weight.T, center, target, 2.0, bounds=bounds)
            assert all(bounds[0] <= value <= bounds[1] for value in z[0].tolist())
            near = np.sort(np.abs(np.array(z[0].tolist())))
            np.testing.assert_allclose(near, [low, high], atol=1e-7)


@NORMS
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_pgd_is_never_weaker_than_fgsm(norm, bounds) -> None:
    model, x, y = trained()
    options = {"norm": norm, "bounds": bounds}
    scale = 1.0 if norm == "linf" else 8.0
    eps = [scale * eps for eps in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)]
    data = [(x[:60], y[:60]), (x[60:], y[60:])]
    weak = robust_accuracy(model, data, "fgsm", eps, **options)
    alone = robust_accuracy(model, data, "fgsm", eps[0], **options)
    assert alone.attacked == {eps[0]: weak.attacked[eps[0]]}
    strong = robust_accuracy(model, data, "pgd", eps, num_steps=5, **options)
    assert weak.clean == strong.clean > 0.95
    assert weak.attacked[0.0] == strong.attacked[0.0] == weak.clean
    assert all(strong.attacked[e] <= weak.attacked[e] for e in eps)
    # The model can be broken, and PGD is stronger somewhere: the comparison means something.
    assert strong.attacked[eps[-1]] < 0.2
    assert any(strong.attacked[e] < weak.attacked[e] for e in eps)
    was_training = model.training
    model.eval()
    for size in eps:
        weak_z = fgsm(model, x, y, size, **options)
        points = weak_z, pgd(model, x, y, size, num_steps=5, **options)
        with torch.no_grad():
            scores = [model(z) for z in points]
        weak_loss, strong_loss = (
            nn.functional.cross_entropy(score, y, reduction="none") for score in scores
        )
        weak_wrong, strong_wrong = (score.argmax(1) != y for score in scores)
        # A point that is misclassified comes first, whatever its loss; then the loss decides.
        assert not bool((weak_wrong & ~strong_wrong).any())
        assert bool((strong_loss >= weak_loss)[weak_wrong == strong_wrong].all())
    model.train(was_training)


@NORMS
def test_the_generator_decides_the_random_starts(norm) -> None:
    model, x, y = trained()
    run = functools.partial(pgd, model, x, y, 0.1, norm=norm, num_steps=1, step_size=0.0)
    state = torch.get_rng_state()
    seen: list[torch.Tensor] = []
    handle = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for seed in (3, 3, 4, None, None):
        run(generator=None if seed is None else torch.Generator().manual_seed(seed))
    handle.remove()
    # The clean point, the FGSM point twice, the random start twice.
    one, again, other, default, default_again = seen[4::5]
    assert torch.equal(one, again) and torch.equal(default, default_again)
    assert not torch.equal(one, other) and not torch.equal(one, default)
    assert torch.equal(torch.get_rng_state(), state)
    data = [(x, y)]
    accuracies = [robust_accuracy(model, data, "pgd", [0.1], num_steps=2) for _ in range(2)]
    assert accuracies[0] == accuracies[1]


@NORMS
def test_random_starts_fill_the_ball(norm) -> None:
    # What the model sees last is a random start, as steps of length 0 leave it.
    seen = []

    def model(z: torch.Tensor) -> torch.Tensor:
        seen.append(z.detach().clone())
        return torch.stack([0.0 * z.sum(1), 0.0 * z.sum(1)], 1)

    x = torch.zeros(20_000, 3, dtype=torch.float64)
    pgd(model, x, torch.zeros(len(x)).long(), 2.0, norm=norm, num_steps=1, step_size=0.0)
    starts = seen[-1].numpy() / 2.0
    radii = np.abs(starts).max(1) if norm == "linf" else np.sqrt((starts**2).sum(1))
    shares = [(radii <= share).mean() for share in (0.25, 0.5, 0.75)]
    np.testing.assert_allclose(shares, [0.25**3, 0.5**3, 0.75**3], atol=0.016)  # 4.5 deviations
    np.testing.assert_allclose(starts.mean(0), 0.0, atol=0.02)


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("attack", ["fgsm", "pgd", "accuracy"])
def test_the_model_is_left_as_it_was(attack, is_broken) -> None:
    model = nn.Sequential(models.make("small-cnn", (1, 8, 8), 4, seed=1), nn.Dropout(0.5))
    model.train()
    model[0][1].eval()  # a frozen part stays frozen
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    flags = [part.training for part in model.modules()]
    num_calls = 0

    def look(module: nn.Module, _: object) -> None:
        nonlocal num_calls
        num_calls += 1
        assert not any(part.training for part in module.modules())
        if is_broken and num_calls == 2:
            raise RuntimeError("broken")

    model.register_forward_pre_hook(look)
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8) % 4
    x.requires_grad_()
    calls = {
        "fgsm": lambda: [fgsm(model, x, y, 0.1) for _ in range(2)],
        "pgd": lambda: pgd(model, x, y, 0.1, num_steps=2),
        "accuracy": lambda: robust_accuracy(model, [(x, y)], "fgsm", [0.1]),
    }
    if is_broken:
        with pytest.raises(RuntimeError, match="broken"):
            calls[attack]()
    else:
        calls[attack]()
    assert num_calls >= 2
    assert [part.training for part in model.modules()] == flags
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before, strict=True))
    assert all(bool((p.grad == 1.0).all()) for p in model.parameters())
    assert x.grad is None and x.requires_grad


@BOTH
def test_attacks_work_where_gradients_are_off(attack) -> None:
    model, x, y = trained()
    expected = attack(model, x, y, 0.1)
    assert not expected.requires_grad
    with torch.no_grad():
        assert torch.equal(attack(model, x, y, 0.1), expected)
    with torch.inference_mode():
        assert torch.equal(attack(model, x.clone(), y, 0.1), expected)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_accuracy_is_what_a_plain_count_gives() -> None:
    model, x, y = trained()
    eps = [0.3, 0.0, 0.1]
    model.eval()
    expected = {
        eps: float((model(fgsm(model, x, y, eps)).argmax(1) == y).double().mean()) for eps in eps
    }
    clean = float((model(x).argmax(1) == y).double().mean())
    model.train()
    sources = [
        DataLoader(TensorDataset(x, y), 64),
        Batches(x, y, 64, seed=0),
        [[x[:7], y[:7]], (x[7:], y[7:], "more")],
    ]
    for data in sources:
        found = robust_accuracy(model, data, "fgsm", eps)
        assert (found.clean, found.attacked, found.num_samples) == (clean, expected, 100)
        assert list(found.attacked) == eps
    own = functools.partial(fgsm, bounds=None)
    assert robust_accuracy(model, [(x, y)], own, eps).attacked == expected
    strong = robust_accuracy(model, [(x, y)], "pgd", [0.1], num_steps=3)
    model.eval()
    z = pgd(model, x, y, 0.1, num_steps=3)
    assert strong.attacked[0.1] == float((model(z).argmax(1) == y).double().mean())
    model.train()


MODEL, SOME_X, SOME_Y = nn.Linear(2, 2), torch.rand(3, 2), torch.tensor([0, 1, 0])


@BOTH
@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"eps": -0.1}, ValueError, "eps"),
        ({"norm": "l1"}, ValueError, "norm"),
        ({"bounds": (1.0, 0.0)}, ValueError, "bounds"),
        ({"bounds": (2.0, 3.0)}, ValueError, "inputs"),
        ({"inputs": SOME_X * math.nan, "bounds": (0.0, 1.0)}, ValueError, "lie"),
        ({"inputs": SOME_X.half()}, TypeError, "float32"),
        ({"inputs": SOME_X[0]}, TypeError, "sample"),
        ({"inputs": SOME_X * math.nan}, FloatingPointError, "output"),
        ({"model": lambda z: 1e38 * (1e38 * z) ** 0.5}, FloatingPointError, "NaN"),
        ({"loss": nn.CrossEntropyLoss()}, ValueError, "sample"),
    ],
)
def test_what_makes_no_sense_is_refused(attack, changes, kind, sentence) -> None:
    arguments = {"model": MODEL, "inputs": SOME_X, "targets": SOME_Y, "eps": 0.1, **changes}
    with pytest.raises(kind, match=sentence):
        attack(**arguments)


@pytest.mark.parametrize(
    ("data", "attack", "options", "kind", "sentence"),
    [
        ([], "fgsm", {}, ValueError, "samples"),
        ([(SOME_X, SOME_X)], "fgsm", {}, ValueError, "class"),
        ([(SOME_X, SOME_Y)], "cw", {}, ValueError, "attack"),
        ([(SOME_X, SOME_Y)], "fgsm", {"num_steps": 3}, TypeError, "num_steps"),
        ([(SOME_X, SOME_Y)], "fgsm", {"norm": "l7"}, ValueError, "norm"),
    ],
)
def test_accuracy_refuses_nonsense(data, attack, options, kind, sentence) -> None:
    with pytest.raises(kind, match=sentence):
        robust_accuracy(MODEL, data, attack, [0.1], **options)
    with pytest.raises(ValueError, match="eps"):
        robust_accuracy(MODEL, [(SOME_X, SOME_Y)], "fgsm", [0.1, -0.1])


def test_attacks_share_no_arithmetic_with_the_rest() -> None:
    shared = {"neada.checks", "neada.folding"}
    for path in Path(neada.attacks.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            inner = [name for name in names if name.startswith("neada") and name not in shared]
            assert all(name.startswith("neada.attacks.") for name in inner)
