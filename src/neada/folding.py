"""Evaluation of a network with batch norm folded into the layers before it.

A batch norm that uses its running statistics is an affine map per channel. Together with the
convolution or linear layer before it, it is one layer with other weights, which
`torch.nn.utils.fusion` computes.

The network is not traced. Its own `forward` runs, and a `TorchFunctionMode` defers convolutions and
linear layers until their output is used. If the first use is a frozen batch norm, both become one
layer, which is deferred again: an activation that uses it first works in place. Otherwise the layer
is evaluated as it is. The modules are never modified.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

__all__ = ["folded"]

_LAYERS = (nn.functional.linear, nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)
_BATCH_NORM = nn.functional.batch_norm
_ACTIVATIONS = (nn.functional.relu, nn.functional.elu, nn.functional.leaky_relu)
_SPECIAL = ("forward", "_hooks", "_compiled_call_impl")  # attributes of modules, by their endings
_undeferred: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()
"""For each network, the ids of the weights whose layers are evaluated where they are called."""


def folded(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that evaluates the network with its frozen batch norms folded.

    A convolution or linear layer in single or double precision is folded if its output is used by a
    batch norm in evaluation mode and by nothing else. The results agree with those of the network
    up to rounding. Networks without frozen batch norm, compiled networks and networks with hooks
    are returned unchanged. With torch older than 2.7 nothing is folded.

    Use the function for gradients with respect to the inputs: the parameters of folded layers
    receive none. Parameters, buffers and modes must not change while the function is used, since it
    computes the folded weights once.

    Args:
        model: A network, or any other function, which is returned unchanged.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU()).eval()
        >>> inputs = torch.ones(4, 2)
        >>> fast = folded(model)
        >>> torch.allclose(fast(inputs), model(inputs))
        True
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    is_frozen = any(hasattr(m, "running_mean") and not m.training for m in modules)
    is_special = any(vars(m)[name] for m in modules for name in vars(m) if name.endswith(_SPECIAL))
    return _Folded(model) if is_frozen and not is_special else model


class _Output(Tensor):
    """The output of a deferred layer, which is evaluated when it is used."""

    layer: tuple[Any, ...]
    weights: tuple[Any, ...]
    is_folded: bool
    is_used = False
    # What bypasses `__torch_function__`, such as `torch.autograd.Function.apply`, raises an error.
    __torch_dispatch__ = None  # type: ignore[assignment]

    @cached_property
    def value(self) -> Any:
        """The output, evaluated once."""
        return self.evaluate()

    def evaluate(self) -> Any:
        """The output as a new tensor."""
        func, inputs, own_weight, _, *rest, kwargs, state, undeferred = self.layer
        weight, bias = self.weights
        if state != _state(inputs):
            raise RuntimeError("the layer would return something else than where it was called")
        if self.is_used:
            undeferred.add(id(own_weight))  # so that this is the last time it is evaluated twice
        self.is_used = True
        is_simple = inputs.requires_grad and rest == [(1, 1), (0, 0), (1, 1), 1]
        if is_simple and weight.shape[1] <= 4 < weight.shape[3]:
            # The input gradient is faster with the columns of the kernel as channels.
            inputs = torch.cat(inputs.unfold(3, weight.shape[3], 1).unbind(4), dim=1)
            layout = torch.channels_last if weight.stride(1) == 1 else torch.contiguous_format
            weight = weight.permute(0, 3, 1, 2).flatten(1, 2)[..., None].clone(memory_format=layout)
        return func(inputs, weight, bias, *rest, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.dim:  # called by batch norm
            return args[0].layer[1].dim()
        args, kwargs = tree_map_only(_Output, lambda output: output.value, (args, kwargs or {}))
        return func(*args, **kwargs)


class _Folded(TorchFunctionMode):
    """A function that evaluates a network with deferred layers."""

    def __init__(self, model: Any) -> None:
        self._model, self._undeferred = model, _undeferred.setdefault(model, set())
        self._fuse: Any = cache(fuse_conv_bn_weights)

    def __call__(self, inputs: Tensor) -> Any:
        self._deferred: list[ref[_Output]] = []
        with suppress(Exception):
            with self:
                outputs = self._model(inputs)
            outputs = outputs.value if isinstance(outputs, _Output) else outputs
            if all(output() is None for output in self._deferred):
                return outputs  # otherwise the network has stored or returned a deferred output
        outputs = self._model(inputs)  # raises again if a deferred layer was not the cause
        self._undeferred.update(map(id, self._model.parameters()))
        return outputs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LAYERS and len(args) > 2:
            args = (args[0].value if isinstance(args[0], _Output) else args[0], *args[1:])
            if id(args[1]) not in self._undeferred and _can_be_deferred(*args[:2]):
                layer = (func, *args, kwargs or {}, _state(args[0]), self._undeferred)
                return self._defer(layer, args[1:3], False)
        kwargs = kwargs or {}
        if args and isinstance(args[0], _Output) and not args[0].is_used:
            if args[0].is_folded and func in _ACTIVATIONS and min(kwargs.values()) >= 0.0:
                return func(args[0].evaluate(), **{**kwargs, "inplace": True})
            if not args[0].is_folded and func is _BATCH_NORM and not kwargs["training"]:
                args[0].is_used = True
                norm = (*args[1:], kwargs["eps"], kwargs["weight"], kwargs["bias"])
                return self._defer(args[0].layer, self._fuse(*args[0].weights, *norm), True)
        return func(*args, **kwargs)

    def _defer(self, layer: tuple[Any, ...], weights: tuple[Any, ...], is_folded: bool) -> Any:
        output: Any = Tensor._make_wrapper_subclass(_Output, layer[1].shape)
        output.layer, output.weights, output.is_folded = layer, weights, is_folded
        self._deferred.append(ref(output))
        return output


def _can_be_deferred(inputs: Tensor, weight: Any) -> bool:
    is_exact = type(weight) is nn.Parameter and weight.dtype in (torch.float32, torch.float64)
    # Activation checkpointing sets these hooks and evaluates the layer again. Needs torch 2.7.
    is_final = torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    return is_exact and is_final and not inputs.is_inference() and inputs.dim() == weight.dim()


def _state(inputs: Tensor) -> object:
    """Changes if a layer that was called would return something else now."""
    return inputs._version, torch.is_grad_enabled(), torch.is_autocast_enabled(inputs.device.type)
