"""The base class of the estimators: arguments, network, standardized inputs, training."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from neada import models
from neada.checks import check_choice, check_number, shown
from neada.data import Batches
from neada.robust import RobustInfo
from neada.tensors import NonFiniteGradient

__all__ = ["Array", "Module", "NetworkClassifier", "NetworkEstimator"]

Array: TypeAlias = NDArray[Any]
Module: TypeAlias = Literal["linear", "mlp"] | Callable[[int, int], nn.Module]

_DTYPES = (np.float64, np.float32)  # of X; the network has the same
_LARGEST_BATCH = 256
_MOST_STEPS = 1000  # of the network's optimizer, unless that is too few epochs
_FEWEST_EPOCHS = 20
_PATIENCE = 5  # epochs without progress before the learning rate falls, or
_PATIENT_STEPS = 20  # this many steps, if that is longer
_FALL = 0.25
_NUM_FALLS = 3  # the next one ends the training


@dataclass(eq=False, repr=False)
class NetworkEstimator(BaseEstimator):
    """An estimator that trains a torch network in batches; see `RobustClassifier`.

    Estimators are dataclasses: fields are the parameters of the constructor, which scikit-learn
    reads from its signature. Subclasses call `_train` within `_prepared`.
    """

    module: Module = "linear"
    _: KW_ONLY
    hidden: Sequence[int] = (64,)
    standardize: bool = True
    lr: float = 0.03
    batch_size: int | None = None
    max_iter: int | None = None
    tol: float = 1e-3
    random_state: Any = None
    verbose: bool = False

    def _inputs(self, X: ArrayLike) -> Tensor:  # noqa: N803
        """Return rows to predict for, in the units of the network."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=_DTYPES, reset=False)
        like = next(self.module_.parameters())
        return torch.tensor(self._scaled(rows), dtype=like.dtype, device=like.device)

    def _scaled(self, rows: Array) -> Array:
        return rows if self.scaler_ is None else self.scaler_.transform(rows)

    def _outputs(self, X: ArrayLike) -> Tensor:  # noqa: N803
        """Return the outputs of the network, one row per row of X."""
        inputs = self._inputs(X)
        with torch.no_grad():
            outputs: Tensor = self.module_(inputs)
        return outputs

    def _checked(self, X: ArrayLike, y: ArrayLike, **options: Any) -> tuple[Array, Array]:  # noqa: N803
        """Check the parameters and return the arguments of `fit` as arrays."""
        check_number("lr", self.lr)
        check_number("tol", self.tol, strict=False)
        if not isinstance(self.module, str) or self.module == "linear":
            self._check_unused(["hidden"], "module='mlp'")
        for name in ("batch_size", "max_iter"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=1, strict=False, whole=True)
        rows, targets = validate_data(self, X, y, dtype=_DTYPES, **options)
        return rows, targets

    def _check_unused(self, names: Sequence[str], users: str) -> None:
        """Raise ValueError if a parameter is not at its default, though only `users` use it."""
        parameters = inspect.signature(type(self)).parameters
        for name in names:
            value = getattr(self, name)
            if not np.array_equal(value, parameters[name].default):
                raise ValueError(
                    f"{name}={shown(value)} is used with {users} only: leave {name} at its default"
                )

    @contextmanager
    def _prepared(self, rows: Array, num_outputs: int) -> Iterator[Tensor]:
        """Make the network, and seed torch with `random_state` for the duration of the block.

        Yields:
            The rows in the units of the network.
        """
        random = check_random_state(self.random_state)
        self._seed = int(random.randint(2**31 - 1))
        self.scaler_ = StandardScaler().fit(rows) if self.standardize else None
        inputs = torch.tensor(self._scaled(rows))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed)
            self.module_ = self._network(inputs.shape[1], num_outputs).to(inputs)
            _check_outputs(self.module_, inputs, num_outputs)
            self.module_.train()
            yield inputs
            self.module_.eval()

    def _network(self, num_features: int, num_outputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            raise TypeError(
                "module must be 'linear', 'mlp' or a function of (num_features, num_outputs) that "
                f"returns a new network, not {type(self.module).__name__}"
            )
        if callable(self.module):
            return self.module(num_features, num_outputs)
        check_choice("module", self.module, ("linear", "mlp"))
        if self.module == "mlp":
            return models.mlp((num_features,), num_outputs, hidden=self.hidden)
        network = models.linear((num_features,), num_outputs)
        for parameter in network.parameters():
            nn.init.zeros_(parameter)  # the problem is convex
        return network

    def _train(
        self,
        step: Callable[..., RobustInfo],
        inputs: Tensor,
        targets: Tensor,
        *,
        extras: Sequence[Tensor] = (),
        after_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        """Minimize the robust loss until it stops falling.

        Adam's learning rate is divided by 4 when the mean over an epoch has not fallen by `tol`
        for 5 epochs (and 20 steps); the fourth time, training ends.

        Args:
            step: The step of the objective: a function of optimizer, inputs, targets, ids, extras.
            inputs: The inputs, one per row.
            targets: The targets, one per row.
            extras: More arguments of `step`, such as group ids.
            after_epoch: Called after every epoch.
        """
        size = _batch_size(len(inputs)) if self.batch_size is None else self.batch_size
        size = min(size, len(inputs))
        batches = Batches(inputs, targets, size, seed=self._seed, extras=extras)
        epochs = max(_FEWEST_EPOCHS, _MOST_STEPS // len(batches))
        epochs = epochs if self.max_iter is None else self.max_iter
        x_optimizer = torch.optim.Adam(self.module_.parameters(), lr=self.lr)
        patience = max(_PATIENCE, math.ceil(_PATIENT_STEPS / len(batches)))
        schedule = ReduceLROnPlateau(
            x_optimizer,
            factor=_FALL,
            patience=patience - 1,
            threshold=self.tol,
            threshold_mode="abs",
            eps=0.0,
        )
        smallest_lr = self.lr * _FALL**_NUM_FALLS
        self.loss_curve_: list[float] = []
        for epoch in range(1, epochs + 1):
            total = 0.0
            try:
                for batch in batches:
                    total += step(x_optimizer, *batch).value * len(batch[0])
            except NonFiniteGradient as error:
                raise ValueError(
                    f"the loss or a gradient is NaN or Inf ({error}): use standardize=True, a "
                    "larger gamma or a smaller eps, or a smaller lr"
                ) from error
            self.loss_curve_.append(total / len(inputs))
            self.n_iter_ = epoch
            after_epoch()
            if self.verbose:
                sys.stderr.write(f"epoch {epoch}: robust loss {self.loss_curve_[-1]:.6f}\n")
            schedule.step(self.loss_curve_[-1])
            if x_optimizer.param_groups[0]["lr"] < smallest_lr:
                break


class NetworkClassifier(ClassifierMixin, NetworkEstimator):
    """A `NetworkEstimator` with one output per class."""

    def _checked_classes(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Tensor]:  # noqa: N803
        """Return the rows, and the indices of the classes."""
        rows, labels = self._checked(X, y)
        check_classification_targets(labels)
        encoder = LabelEncoder()
        numbers = encoder.fit_transform(labels)
        self.classes_: Array = encoder.classes_
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_.tolist()[0]!r}")
        return rows, torch.as_tensor(numbers, dtype=torch.int64)

    def decision_function(self, X: ArrayLike) -> Array:  # noqa: N803
        """The logits; for two classes those of the second minus those of the first.

        Args:
            X: One sample per row.

        Returns:
            One row per sample and one column per class; one number per sample for two classes.
        """
        logits: Array = self._outputs(X).numpy(force=True)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: ArrayLike) -> Array:  # noqa: N803
        """The probabilities of the classes, in the order of `classes_`.

        Args:
            X: One sample per row.
        """
        probabilities: Array = torch.softmax(self._outputs(X), dim=1).numpy(force=True)
        return probabilities

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803
        """The most probable class of each sample.

        Args:
            X: One sample per row.
        """
        numbers = self._outputs(X).argmax(1).numpy(force=True)
        labels: Array = self.classes_[numbers]
        return labels


def _batch_size(num_samples: int) -> int:
    """At least about four batches of similar size, so that small data take several steps."""
    num_batches = max(min(4, num_samples // 16), math.ceil(num_samples / _LARGEST_BATCH), 1)
    return math.ceil(num_samples / num_batches)


def _check_outputs(network: nn.Module, inputs: Tensor, num_outputs: int) -> None:
    """Raise ValueError unless the network has the right number of outputs."""
    network.eval()
    with torch.no_grad():
        shape = tuple(network(inputs[:1]).shape)
    if shape != (1, num_outputs):
        raise ValueError(
            f"the network returns shape {shape} for one sample, but must return "
            f"{(1, num_outputs)}: make it of both arguments of module(num_features, num_outputs)"
        )
