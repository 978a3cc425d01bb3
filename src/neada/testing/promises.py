"""What a battery is made of: promises in words, each with the check that can break it."""

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Battery", "clones", "difference", "flat", "leaf", "require", "same", "saved_and_loaded"]

Check = Callable[..., None]
_CheckT = TypeVar("_CheckT", bound=Check)


class Battery:
    """Promises that one kind of part makes, in the order in which they are checked."""

    def __init__(self) -> None:
        self.promises: dict[str, Check] = {}

    def promise(self, words: str) -> Callable[[_CheckT], _CheckT]:
        """Enter a check under the promise that it judges."""

        def enter(check: _CheckT) -> _CheckT:
            self.promises[words] = check
            return check

        return enter

    def judge(self, name: str, *args: object) -> None:
        """Check every promise.

        Args:
            name: What the part is called in the message.
            args: What every check is given.

        Raises:
            AssertionError: A promise is broken, or the part raised what it should not.
        """
        for words, check in self.promises.items():
            try:
                check(*args)
            except AssertionError as error:
                raise AssertionError(f"{name}: {words}, but {error}") from error
            except Exception as error:
                found = f"it raised {type(error).__name__}: {error}"
                raise AssertionError(f"{name}: {words}, but {found}") from error


def require(kept: bool, found: str) -> None:
    """Raise an `AssertionError` that says what was found, unless all is well."""
    if not kept:
        raise AssertionError(found)


def leaf(entries: object, dtype: torch.dtype = torch.float64) -> Tensor:
    """A new tensor that requires a gradient."""
    return torch.as_tensor(entries, dtype=dtype).detach().clone().requires_grad_()


def clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies without history."""
    return [tensor.detach().clone() for tensor in tensors]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """The entries of all tensors, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether tensors are equal bit for bit."""
    return len(left) == len(right) and all(map(torch.equal, left, right))


def difference(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The largest difference of two entries; undefined ones count as infinite."""
    apart = (flat(left).detach().double() - flat(right).detach().double()).abs()
    return float(apart.nan_to_num(nan=float("inf")).max())


def saved_and_loaded(state: Any) -> Any:
    """A state as a checkpoint gives it back: written, and read with `weights_only=True`."""
    file = io.BytesIO()
    torch.save(copy.deepcopy(state), file)
    file.seek(0)
    return torch.load(file, weights_only=True)
