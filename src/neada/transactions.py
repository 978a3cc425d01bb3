"""Steps that are taken whole or not at all: what a step may change is saved, and put back.

What moves last needs no copy: its numbers are checked before it moves. Copied are the small parts
that change earlier: y, what its optimizer remembers, running statistics, counters.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import tensors

__all__ = [
    "Buffers",
    "Undo",
    "put_back",
    "saved_attributes",
    "saved_generator",
    "saved_player",
    "saved_tensors",
    "undone_unless_finite",
]

Undo = Callable[[], object]

_PLAIN = frozenset({bool, int, float, str, tuple, type(None)})


class undone_unless_finite:  # noqa: N801 (a block, as contextlib has them)
    """A block whose changes are undone where it meets a number that is not finite.

    Args:
        undos: What puts everything back that the block may change.
    """

    __slots__ = ("_undos",)

    def __init__(self, *undos: Undo) -> None:
        self._undos = undos

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FloatingPointError):
            for undo in self._undos:
                undo()


def saved_tensors(targets: Sequence[Tensor]) -> Undo:
    """Save the content of tensors."""
    return partial(_copy_back, targets, tensors.clone(targets))


@torch.no_grad()
def _copy_back(targets: Sequence[Tensor], content: Sequence[Tensor]) -> None:
    for target, before in zip(targets, content, strict=True):
        target.copy_(before)


def saved_attributes(owner: object) -> Undo:
    """Save which objects the attributes of an object are, not what is in them."""
    attributes = vars(owner)
    return partial(put_back, attributes, attributes.copy())


def put_back(entries: dict[str, Any], before: dict[str, Any]) -> None:
    """Make a dictionary what its copy is."""
    entries.clear()
    entries.update(before)


def saved_player(optimizer: Optimizer) -> Undo:
    """Save the parameters of an optimizer and what it remembers: its state and its groups."""
    found: list[Tensor] = []
    state = [(param, _structure(memory, found)) for param, memory in optimizer.state.items()]
    groups = [_structure(group, found) for group in optimizer.param_groups]
    content = [(t.detach() if t.requires_grad else t).clone() for t in found]
    return partial(
        _put_player_back, optimizer, vars(optimizer).copy(), state, groups, found, content
    )


def _put_player_back(
    optimizer: Optimizer,
    attributes: dict[str, Any],
    state: list[tuple[Tensor, Any]],
    groups: list[dict[str, Any]],
    found: list[Tensor],
    content: list[Tensor],
) -> None:
    put_back(vars(optimizer), attributes)
    _copy_back(found, content)
    optimizer.state.clear()
    optimizer.state.update(state)
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        put_back(group, before)


def _structure(entries: dict[str, Any], found: list[Tensor]) -> dict[str, Any]:
    """A copy of a dictionary, and of those in it, with the same tensors, which are listed.

    The list of the parameters stays the one it is: others hold it, too.
    """
    copied = entries.copy()
    for name, entry in entries.items():
        if type(entry) in _PLAIN:  # most are; to ask whether they are tensors takes a microsecond
            continue
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, dict):
            copied[name] = _structure(entry, found)
        elif name == "params":
            found += entry
        elif isinstance(entry, list):
            copied[name] = list(entry)
            found += [part for part in entry if isinstance(part, Tensor)]
    return copied


def saved_generator(generator: torch.Generator) -> Undo:
    """Save where a source of random numbers is."""
    state = generator.get_state()
    return lambda: generator.set_state(state)


class Buffers:
    """The buffers of networks as they are now, such as the running statistics of batch norm.

    Args:
        modules: The networks.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._owners = [
            (owner, name, buffer)
            for module in modules
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]
        self._content = tensors.clone([buffer for _, _, buffer in self._owners])

    def undo(self) -> None:
        """Put them back."""
        with torch.no_grad():
            for (owner, name, buffer), before in zip(self._owners, self._content, strict=True):
                buffer.copy_(before)
                setattr(owner, name, buffer)

    def are_finite(self) -> bool:
        """Whether all numbers that were finite are so still."""
        pairs = [
            (now, before)
            for (owner, name, _), before in zip(self._owners, self._content, strict=True)
            if (now := getattr(owner, name)) is not None and now.is_floating_point()
        ]
        if not pairs:
            return True
        norms = torch._foreach_norm([now for now, _ in pairs])
        if bool(torch.stack([norm.float() for norm in norms]).isfinite().all()):
            return True
        return all(bool((now.isfinite() | ~old.isfinite()).all()) for now, old in pairs)

    def check(self) -> None:
        """Raise `NonFiniteGradient` unless all numbers that were finite are so still."""
        if not self.are_finite():
            raise tensors.NonFiniteGradient(
                "a running statistic of the model is not finite after its evaluation; nothing was "
                "changed: lower the learning rate or check the data"
            )
