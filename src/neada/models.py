"""The paper's networks, two small ones, and a wrapper that normalizes inputs."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from neada.checks import check_choice, check_number

__all__ = ["Normalized", "cnn", "linear", "make", "mlp", "names", "small_cnn"]

_Shape = Sequence[int]


class Normalized(nn.Module):
    """A network with a layer that normalizes its inputs, channel by channel.

    Inputs and perturbations stay in the units of the data, such as [0, 1]: `eps` and `bounds` of
    objectives and attacks are in pixels. Mean and standard deviation are buffers of the module.

    Args:
        model: The network, which expects normalized inputs.
        mean: The mean of the inputs: one number, or one per channel.
        std: Their standard deviation, likewise.

    Example:
        >>> model = Normalized(nn.Flatten(), mean=(0.5, 0.0), std=(0.25, 2.0))
        >>> model(torch.ones(1, 2, 1, 1))
        tensor([[2.0000, 0.5000]])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, mean: float | Sequence[float], std: float | Sequence[float]
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32).reshape(-1))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32).reshape(-1))
        if not bool((self.std > 0.0).all()):
            raise ValueError(f"std must be greater than 0, got {std}")
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for normalized inputs; the channels are the second dimension."""
        shape = (-1,) + (1,) * (inputs.dim() - 2)
        normalized = (inputs - self.mean.view(shape)) / self.std.view(shape)
        outputs: Tensor = self.model(normalized)
        return outputs


def linear(input_shape: _Shape, num_classes: int) -> nn.Sequential:
    """One affine layer on the flattened input.

    Args:
        input_shape: The shape of one input.
        num_classes: The number of outputs.
    """
    return mlp(input_shape, num_classes, hidden=())


def mlp(input_shape: _Shape, num_classes: int, *, hidden: Sequence[int] = (4, 2)) -> nn.Sequential:
    """Affine layers with ELU between them; the paper's is 2-4-2-2.

    Args:
        input_shape: The shape of one input, which is flattened.
        num_classes: The number of outputs.
        hidden: Widths of the hidden layers.
    """
    _check_hidden(hidden)
    sizes = [math.prod(input_shape), *hidden, num_classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), nn.ELU()]
    return nn.Sequential(*layers[:-1])


def _check_hidden(hidden: object) -> None:
    if isinstance(hidden, int):
        raise TypeError(f"hidden must be a sequence of widths, such as ({hidden},), got {hidden}")


def cnn(input_shape: _Shape, num_classes: int) -> nn.Sequential:
    """The paper's network for MNIST.

    Three blocks of convolution, batch norm and ELU (32, 64 and 128 channels; kernels 8, 6 and 5),
    the last two followed by max-pooling over 2x2, and an affine layer, 512-10 for 28x28 images.

    Args:
        input_shape: Channels, height and width of one input; at least 24x24.
        num_classes: The number of outputs.
    """
    channels, height, width = _image_shape("cnn", input_shape, 24)
    rows, columns = (((side - 12) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        *_block(channels, 32, 8),
        *_block(32, 64, 6),
        nn.MaxPool2d(2),
        *_block(64, 128, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * rows * columns, num_classes),
    )


def small_cnn(input_shape: _Shape, num_classes: int) -> nn.Sequential:
    """A small version of `cnn`, for images such as the 8x8 digits.

    Two blocks of 3x3 convolution that keeps the size, batch norm and ELU (16 and 32 channels),
    max-pooling over 2x2, and an affine layer.

    Args:
        input_shape: Channels, height and width of one input; at least 2x2.
        num_classes: The number of outputs.
    """
    channels, height, width = _image_shape("small-cnn", input_shape, 2)
    return nn.Sequential(
        *_block(channels, 16, 3, padding=1),
        *_block(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 2) * (width // 2), num_classes),
    )


_MODELS: dict[str, Callable[..., nn.Sequential]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "small-cnn": small_cnn,
}


def names() -> list[str]:
    """The names of the models that `make` builds."""
    return list(_MODELS)


def make(
    name: str,
    input_shape: _Shape,
    num_classes: int,
    *,
    seed: int | None = None,
    hidden: Sequence[int] | None = None,
) -> nn.Sequential:
    """A model by name, freshly initialized, on the CPU.

    Args:
        name: One of `names()`.
        input_shape: The shape of one input.
        num_classes: The number of outputs, at least 2.
        seed: Seed of the initialization, which does not change torch's global generator; None uses
            the global generator.
        hidden: Widths of the hidden layers of "mlp"; (4, 2) by default.

    Returns:
        The model, in training mode.

    Raises:
        ValueError: the name is unknown, or the inputs are too small for the model.

    Example:
        >>> model = make("mlp", (2,), 2, seed=0)
        >>> [tuple(p.shape) for p in model.parameters()]
        [(4, 2), (4,), (2, 4), (2,), (2, 2), (2,)]
    """
    check_choice("model", name, _MODELS)
    check_number("num_classes", num_classes, above=2, strict=False, whole=True)
    _check_hidden(hidden)
    if hidden is not None and name != "mlp":
        raise ValueError(f"hidden is for the model 'mlp'; {name!r} has fixed layers")
    options = {} if hidden is None else {"hidden": hidden}
    with torch.random.fork_rng(devices=[], enabled=seed is not None), torch.device("cpu"):
        if seed is not None:
            # torch.manual_seed would seed the other devices too, which are not forked.
            torch.default_generator.manual_seed(seed)
        model = _MODELS[name](input_shape, num_classes, **options)
    return model


def _block(num_in: int, num_out: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    convolution = nn.Conv2d(num_in, num_out, kernel, padding=padding)
    return [convolution, nn.BatchNorm2d(num_out), nn.ELU()]


def _image_shape(name: str, input_shape: _Shape, smallest: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ValueError(
            f"{name!r} needs images of shape (channels, height, width), at least {smallest}x"
            f"{smallest}, got {tuple(input_shape)}; 'linear' and 'mlp' take any shape"
        )
    channels, height, width = input_shape
    return channels, height, width
