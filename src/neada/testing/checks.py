"""What the batteries share: how checks are run, and comparisons of tensors."""

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "assert_close",
    "assert_raises",
    "clones",
    "difference",
    "flat",
    "leaf",
    "run_checks",
    "saved_and_loaded",
]


def run_checks(name: str, checks: Sequence[Callable[..., None]], *args: object) -> None:
    """Run checks in order; the docstring of a check states what it requires.

    Args:
        name: The name of the checked object in messages.
        checks: Functions that raise if the requirement is not met.
        args: The arguments of every check.

    Raises:
        AssertionError: A requirement is not met.
    """
    for check in checks:
        try:
            check(*args)
        except Exception as error:
            found = str(error) if isinstance(error, AssertionError) else repr(error)
            raise AssertionError(f"{name}: {check.__doc__} Found: {found}") from error


def assert_raises(kind: type[Exception], call: Callable[[], object], when: str) -> None:
    """Raise an `AssertionError` unless a call raises an exception of some kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__} for {when}")


def leaf(entries: object, dtype: torch.dtype = torch.float64) -> Tensor:
    """A new tensor that requires a gradient."""
    return torch.as_tensor(entries, dtype=dtype).detach().clone().requires_grad_()


def clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies without autograd history."""
    return [tensor.detach().clone() for tensor in tensors]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """The entries of all tensors in one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def difference(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The largest difference of two entries; NaN counts as infinite."""
    apart = (flat(left).detach().double() - flat(right).detach().double()).abs()
    return float(apart.nan_to_num(nan=float("inf")).max())


def assert_close(
    left: Sequence[Tensor], right: Sequence[Tensor], when: str, tol: float = 0.0
) -> None:
    """Raise an `AssertionError` if two entries differ by more than `tol`."""
    apart = difference(left, right)
    assert apart <= tol, f"an entry differs by {apart:.3g} {when}"


def saved_and_loaded(state: Any) -> Any:
    """A state after it has been saved and loaded with `weights_only=True`."""
    file = io.BytesIO()
    torch.save(copy.deepcopy(state), file)
    file.seek(0)
    return torch.load(file, weights_only=True)
