"""The networks: layers, sizes, initialization by seed, normalized inputs."""

import numpy as np
import pytest
import torch
from torch import nn

from neada import models


def kinds(model: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in model.children()]


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_mlp_is_the_paper_s() -> None:
    model = models.make("mlp", (2,), 2, seed=0).double()
    assert kinds(model) == ["Flatten", "Linear", "ELU", "Linear", "ELU", "Linear"]
    weights = [parameter.detach().numpy() for parameter in model.parameters()]
    x = np.random.default_rng(0).normal(size=(7, 2))
    hidden = x
    for i in (0, 2, 4):
        hidden = hidden @ weights[i].T + weights[i + 1]
        if i < 4:
            hidden = np.where(hidden > 0, hidden, np.exp(np.minimum(hidden, 0)) - 1)
    np.testing.assert_allclose(model(torch.from_numpy(x)).detach().numpy(), hidden, atol=1e-12)


def test_the_cnn_is_the_paper_s() -> None:
    model = models.make("cnn", (1, 28, 28), 10, seed=0)
    block = ["Conv2d", "BatchNorm2d", "ELU"]
    expected = [*block, *block, "MaxPool2d", *block, "MaxPool2d", "Flatten", "Linear"]
    assert kinds(model) == expected
    convolutions = [layer for layer in model if isinstance(layer, nn.Conv2d)]
    shapes = [tuple(layer.weight.shape) for layer in convolutions]
    assert shapes == [(32, 1, 8, 8), (64, 32, 6, 6), (128, 64, 5, 5)]
    assert all(layer.stride == (1, 1) and layer.padding == (0, 0) for layer in convolutions)
    assert model[-1].weight.shape == (10, 512)
    assert [layer.kernel_size for layer in model if isinstance(layer, nn.MaxPool2d)] == [2, 2]
    # weights and biases of convolutions, two numbers per normalized channel, the last layer
    by_hand = (2048 + 32) + (73728 + 64) + (204800 + 128) + 2 * (32 + 64 + 128) + 5130
    assert num_parameters(model) == by_hand
    assert model(torch.rand(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("linear", (1, 8, 8)),
        ("mlp", (3, 4)),
        ("small-cnn", (1, 8, 8)),
        ("small-cnn", (3, 2, 5)),
        ("cnn", (3, 24, 33)),
    ],
)
def test_models_take_inputs_of_their_shape(name, shape) -> None:
    model = models.make(name, shape, 4, seed=0)
    assert model.training
    assert model(torch.rand(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("name", models.names())
def test_a_seed_decides_and_leaves_the_global_generator_alone(name) -> None:
    state = torch.get_rng_state()
    one, again, other = (models.make(name, (1, 28, 28), 10, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(one.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_the_initialization_is_torch_s() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        expected = [nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 2)]
        torch.manual_seed(11)
        unseeded = models.make("mlp", (2,), 2)
    layers = [layer for layer in models.make("mlp", (2,), 2, seed=11) if hasattr(layer, "weight")]
    for layer, other in zip(layers, expected, strict=True):
        assert torch.equal(layer.weight, other.weight) and torch.equal(layer.bias, other.bias)
    assert torch.equal(unseeded[1].weight, expected[0].weight)


@pytest.mark.parametrize(
    ("arguments", "options", "keyword"),
    [
        (("cnm", (1, 28, 28), 10), {}, "cnn"),
        (("cnn", (28, 28), 10), {}, "images"),
        (("cnn", (1, 23, 28), 10), {}, "24"),
        (("mlp", (2,), 1), {}, "num_classes"),
        (("cnn", (1, 28, 28), 10), {"hidden": (3,)}, "hidden"),
    ],
)
def test_bad_arguments_raise(arguments, options, keyword) -> None:
    with pytest.raises(ValueError, match=keyword):
        models.make(*arguments, **options)
    with pytest.raises(ValueError, match="std"):
        models.Normalized(nn.Identity(), 0.0, 0.0)


def test_a_network_that_normalizes_sees_what_numpy_computes() -> None:
    pixels = np.random.default_rng(0).uniform(size=(2, 3, 4, 5))
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    model = models.Normalized(nn.Identity(), mean, std).double()
    expected = (pixels - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(model(torch.from_numpy(pixels)).numpy(), expected, atol=1e-7)
    assert {"mean", "std"} == set(model.state_dict())
    rows = torch.rand(4, 6)
    assert torch.equal(models.Normalized(nn.Identity(), 0.5, 0.25)(rows), (rows - 0.5) / 0.25)
