r"""Batch norm folded into the layer before it, while the weights stand still.

With running statistics a batch norm is an affine map per channel, and so is one layer with the
convolution or linear layer before it:

.. math::
    s\,(W v + b - \mu) + \beta = (s W)\,v + s\,(b - \mu) + \beta, \qquad
    s = \frac{\text{weight}}{\sqrt{\sigma^2 + \text{eps}}}

Which layers may be folded is read from a symbolic trace of the network: the output of the layer
goes into the batch norm and nowhere else. The trace itself is never run, since it has lost
everything that Python decides; the network's own `forward` is, with the calls of those layers
intercepted, and if the data ever go another way than in the trace the network is evaluated again as
it is. Nothing of the network is changed, not even for the time of the block.

The input gradient of a folded convolution with few input channels, such as the first one of a
network for images, is computed column by column of the kernel, several times as fast as by torch.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

__all__ = ["folded"]

_Model = Callable[[Tensor], Tensor]

_FUNCTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: functional.linear,
    nn.Conv1d: functional.conv1d,
    nn.Conv2d: functional.conv2d,
    nn.Conv3d: functional.conv3d,
    nn.ConvTranspose1d: functional.conv_transpose1d,
    nn.ConvTranspose2d: functional.conv_transpose2d,
    nn.ConvTranspose3d: functional.conv_transpose3d,
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Their derivative can be computed from their result, if the slope is not negative.
_ACTIVATIONS: dict[Callable[..., Tensor], str] = {
    functional.relu: "",
    functional.elu: "alpha",
    functional.leaky_relu: "negative_slope",
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FEW_CHANNELS = 4
_SAVING = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # torch >= 2.7
_PARALLEL = ("torch.nn.parallel", "torch.distributed")


@contextmanager
def folded(model: _Model) -> Iterator[_Model]:
    """A function that evaluates the network with every batch norm folded where that is the same.

    Folded are layers of torch's own classes (convolution, transposed convolution, linear) whose
    output only a batch norm uses that is in evaluation mode and has running statistics. An
    activation (ReLU, leaky ReLU, ELU) that alone uses its output works in place. Networks with
    hooks, compiled or parallel ones, and those that `torch.fx` cannot trace are evaluated as they
    are. The trace is kept until the network's structure, modes or plain attributes change.

    For gradients with respect to the inputs: the parameters of folded layers get none, and they
    must not change inside the block.

    Args:
        model: A network, or any function, which is returned as it is.

    Yields:
        The function.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU()).eval()
        >>> inputs = torch.ones(4, 2)
        >>> with folded(model) as fast:
        ...     outputs = fast(inputs)
        >>> torch.allclose(outputs, model(inputs))
        True
    """
    if isinstance(model, nn.Module) and (pairs := _pairs(model)):
        yield _Folded(model, pairs)
    else:
        yield model


# What to fold, and with which weights.


class _Place(NamedTuple):
    """Where in a network there is something to fold."""

    layer: str
    batch_norm: str
    used_once: bool  # the output of the batch norm


class _Pair(NamedTuple):
    """A layer and its batch norm as one layer."""

    function: Callable[..., Tensor]
    old_weight: Tensor
    old_bias: Tensor | None
    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    used_once: bool


_known: WeakKeyDictionary[nn.Module, dict[Hashable, list[_Place]]] = WeakKeyDictionary()
_MOST_KNOWN = 8
_surprising: WeakSet[nn.Module] = WeakSet()
"""Networks in which data went another way than in the trace."""


def _pairs(model: nn.Module) -> list[_Pair]:
    pairs = [_pair(model, place) for place in _places(model)]
    return [pair for pair in pairs if pair is not None]


@torch.no_grad()
def _pair(model: nn.Module, place: _Place) -> _Pair | None:
    layer, norm = model.get_submodule(place.layer), model.get_submodule(place.batch_norm)
    assert isinstance(layer, nn.Linear | _ConvNd) and isinstance(norm, _BATCH_NORMS)
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None or not mean.is_floating_point():
        return None
    given = [layer.weight, layer.bias, mean, variance, norm.weight, norm.bias]
    kinds = {(t.dtype, t.device) for t in given if t is not None}
    if len(kinds) > 1 or not {type(t) for t in given} <= {Tensor, nn.Parameter, type(None)}:
        return None
    num_outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    if mean.shape != (num_outputs,):
        return None
    dtype = mean.dtype
    wide = torch.promote_types(dtype, torch.float32)
    scale = (variance.to(wide) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = (-mean if layer.bias is None else layer.bias - mean).to(wide) * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    weight, bias = _scaled(layer, scale).to(dtype), shift.to(dtype)
    if wide != dtype and not bool(weight.isfinite().all() & bias.isfinite().all()):
        return None
    function = _FUNCTIONS[type(layer)]
    return _Pair(function, layer.weight, layer.bias, weight, bias, mean, place.used_once)


def _scaled(layer: nn.Linear | _ConvNd, scale: Tensor) -> Tensor:
    """The weight of a layer whose outputs are scaled, channel by channel."""
    weight = layer.weight
    if isinstance(layer, nn.Linear) or not layer.transposed:
        return weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    # Here the outputs of a group stand in the second dimension, and the groups in the first.
    per_group = scale.reshape(layer.groups, 1, -1).expand(-1, len(weight) // layer.groups, -1)
    return weight * per_group.reshape(*weight.shape[:2], *[1] * (weight.dim() - 2))


def _places(model: nn.Module) -> list[_Place]:
    """Where there is something to fold, from memory where nothing has changed."""
    frozen = any(type(m) in _BATCH_NORMS and not m.training for m in model.modules())
    if not frozen or model in _surprising:
        return []
    modules = list(model.named_modules(remove_duplicate=False))
    if any(not _is_plain(name, module) for name, module in modules):
        return []
    if _SAVING is None and any(not _is_of_torch(module) for _, module in modules):
        return []
    signature = _signature(model, modules)
    known = _known.setdefault(model, {})
    if signature not in known:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        try:
            known[signature] = _find(model)
        except Exception:  # whatever cannot be copied or traced is not proven to be foldable
            known[signature] = []
    return known[signature]


def _is_plain(name: str, module: nn.Module) -> bool:
    """Whether nothing but its `forward` happens when the module is called, and that here."""
    parts = vars(module)
    return (
        "forward" not in parts
        and not any(parts.get(hooks) for hooks in _HOOKS)
        and parts.get("_compiled_call_impl") is None
        and not name.endswith("_orig_mod")  # the inside of a compiled module
        and not type(module).__module__.startswith(_PARALLEL)
    )


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn")


def _signature(model: nn.Module, modules: list[tuple[str, nn.Module]]) -> Hashable:
    """Changes with the modules, their modes, parameters and plain attributes."""
    parts = tuple(
        (
            name,
            id(module),
            type(module),
            type(module).forward,
            *(item for item in vars(module).items() if _is_number_or_word(item[1])),
        )
        for name, module in modules
    )
    return parts, tuple(id(p) for _, p in model.named_parameters(remove_duplicate=False))


def _is_number_or_word(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _find(model: nn.Module) -> list[_Place]:
    """Trace the network and look for layers whose output only a batch norm uses."""
    times = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    graph = _trace(model)
    calls = Counter(id(_module(model, node)) for node in graph.nodes if node.op == "call_module")
    read = {node.target.rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    found = []
    for node in graph.nodes:
        (before, *others) = node.all_input_nodes or [node]
        if others or node.op != "call_module" or before.op != "call_module":
            continue
        layer, norm = _module(model, before), _module(model, node)
        if (
            type(layer) in _FUNCTIONS
            and type(norm) in _BATCH_NORMS
            and not norm.training
            and isinstance(layer.weight, nn.Parameter)
            and len(before.users) == 1
            and calls[id(layer)] == calls[id(norm)] == times[id(layer.weight)] == 1
            and before.target not in read
        ):
            found.append(_Place(before.target, node.target, len(node.users) == 1))
    return found


def _module(model: nn.Module, node: fx.Node) -> nn.Module:
    return model.get_submodule(str(node.target))


def _trace(model: nn.Module) -> fx.Graph:
    """The network's operations, read from a copy: `forward` may keep or count what it sees."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    twin = copy.deepcopy(model, shared)
    _, *others = inspect.signature(twin.forward).parameters.values()
    usual = {p.name: p.default for p in others if p.default is not p.empty}
    with torch.random.fork_rng(devices=[]):
        graph = fx.Tracer().trace(twin, usual)
    kept: list[object] = []
    for module in twin.modules():
        fx.node.map_aggregate(list(vars(module).values()), kept.append)
    if any(isinstance(value, fx.Proxy) for value in kept):
        raise ValueError("the network keeps what it computes, so a graph does not show every use")
    return graph


# The evaluation.


class _ElsewhereError(Exception):
    """The output of a folded layer does not go where the trace says."""


class _Folded:
    """The network as a function, with the calls of some layers intercepted."""

    def __init__(self, model: nn.Module, pairs: list[_Pair]) -> None:
        self._model = model
        self._pairs = {id(pair.old_weight): pair for pair in pairs}

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._pairs:
            try:
                return self._evaluate(inputs)
            except _ElsewhereError:
                self._pairs = {}
                _surprising.add(self._model)
        outputs: Tensor = self._model(inputs)
        return outputs

    def _evaluate(self, inputs: Tensor) -> Tensor:
        with _Interception(self._pairs) as interception:
            outputs: Tensor = self._model(inputs)
            interception.check_end()
        return outputs


class _Interception(TorchFunctionMode):
    """Calls the functions of a network, those of folded layers with other weights."""

    def __init__(self, pairs: dict[int, _Pair]) -> None:
        self._pairs = pairs
        self._last: tuple[Tensor, _Pair] | None = None  # a layer's output, until its batch norm
        self._own: Tensor | None = None  # an output that only the next function uses

    def check_end(self) -> None:
        """Raise if a batch norm is still to come."""
        if self._last is not None:
            raise _ElsewhereError

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is Tensor.dim:  # batch norm asks for it
            return args[0].dim()
        if self._last is not None:
            return self._after_layer(func, args)
        own, self._own = self._own, None
        if own is not None and func in _ACTIVATIONS and args and args[0] is own:
            slope = options.get(_ACTIVATIONS[func], 0.0)
            options = {**options, "inplace": options.get("inplace") or slope >= 0.0}
            return func(*args, **options)
        pair = self._pairs.get(id(args[1])) if len(args) > 2 else None
        if pair is None or not _fits(pair, func, args):
            return func(*args, **options)
        if not options and _is_thin(args):
            outputs = _thin(args[0], pair.weight, pair.bias, args[4])
        else:
            outputs = func(args[0], pair.weight, pair.bias, *args[3:], **options)
        self._last = (outputs, pair)
        return outputs

    def _after_layer(self, func: Any, args: tuple[Any, ...]) -> Any:
        """What the layer computed is the output of the batch norm already."""
        assert self._last is not None
        outputs, pair = self._last
        self._last = None
        if func is not functional.batch_norm:
            raise _ElsewhereError
        if args[0] is not outputs or args[1] is not pair.running_mean:
            raise _ElsewhereError
        # A derivative from a result in half precision has too few digits.
        exact = outputs.dtype in (torch.float32, torch.float64)
        self._own = outputs if pair.used_once and exact else None
        return outputs


def _fits(pair: _Pair, func: Any, args: tuple[Any, ...]) -> bool:
    inputs: Tensor
    weight: Tensor
    inputs, weight, bias = args[:3]
    return (
        func is pair.function
        and weight is pair.old_weight
        and bias is pair.old_bias
        # Channels are in the second dimension.
        and type(inputs) in (Tensor, nn.Parameter)
        and inputs.dim() == weight.dim()
        # Somebody who saves tensors in a way of their own may compute them again without us.
        and (_SAVING is None or _SAVING(True) is None)
    )


# The input gradient of a convolution with few input channels.


def _is_thin(args: tuple[Any, ...]) -> bool:
    """Whether these are arguments of a convolution that `_ThinConv2d` is for."""
    inputs, weight, _, *rest = args
    if weight.dim() != 4 or len(rest) != 4 or not isinstance(rest[1], tuple):
        return False
    stride, padding, dilation, groups = rest
    return (
        weight.shape[1] <= _FEW_CHANNELS < weight.shape[0]
        and weight.shape[3] > 1
        and stride == dilation == (1, 1)
        and groups == 1
        and all(p < size for p, size in zip(padding, weight.shape[2:], strict=True))
        and inputs.device.type == "cpu"
        and inputs.dtype in (torch.float32, torch.float64)
        and inputs.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


class _ThinConv2d(torch.autograd.Function):
    """A convolution with stride 1 whose weights get no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
        return functional.conv2d(inputs, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, weight, _, ctx.padding = inputs
        ctx.save_for_backward(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _input_gradient(gradient, weight, *ctx.padding), None, None, None


_thin: Callable[..., Tensor] = _ThinConv2d.apply


def _input_gradient(gradient: Tensor, weight: Tensor, above: int, left: int) -> Tensor:
    """Convolve with each column of the kernel as an output channel of its own; shift and add."""
    _, num_inputs, height, width = weight.shape
    columns = weight.flip(2).permute(1, 3, 0, 2).flatten(0, 1).unsqueeze(3)
    parts = functional.conv2d(gradient, columns, padding=(height - 1 - above, 0))
    parts = parts.reshape(len(parts), num_inputs, width, *parts.shape[2:])
    num_columns = gradient.shape[3]
    total = parts.new_zeros(*parts.shape[:2], parts.shape[3], num_columns + width - 1)
    for i in range(width):
        total[..., i : i + num_columns] += parts[:, :, i]
    return total[..., left : total.shape[3] - left]
