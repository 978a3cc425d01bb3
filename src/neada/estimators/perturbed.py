"""A classifier and a regressor that are trained on adversarially perturbed inputs."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.validation import column_or_1d
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from neada import robust
from neada.checks import check_choice
from neada.estimators.base import Array, NetworkClassifier, NetworkEstimator
from neada.robust.adversarial import Norm
from neada.robust.losses import Loss

__all__ = ["RobustClassifier", "RobustRegressor"]

# A few steps are enough: the perturbations continue where the last epoch left them.
_ADVERSARY = robust.Adversary(start="kept", max_steps=5)


@dataclass(eq=False, repr=False, kw_only=True)
class _Perturbed(NetworkEstimator):
    """The objective and the certificate of the classifier and the regressor."""

    objective: Literal["wrm", "adversarial"] = "wrm"
    gamma: float = 1.0
    eps: float = 0.1
    norm: Norm = "linf"

    _loss: ClassVar[Loss]

    def _fit_perturbed(self, rows: Array, targets: Tensor, num_outputs: int) -> Self:
        check_choice("objective", self.objective, ("wrm", "adversarial"))
        if self.objective == "wrm":
            self._check_unused(["eps", "norm"], "objective='adversarial'")
        else:
            self._check_unused(["gamma"], "objective='wrm'")
        with self._prepared(rows, num_outputs) as inputs:
            self._train(self._robust_objective().step, inputs, targets)
        return self

    def _robust_objective(self) -> robust.WRM | robust.AdversarialTraining:
        if self.objective == "wrm":
            return robust.WRM(self.module_, self._loss, self.gamma, adversary=_ADVERSARY)
        return robust.AdversarialTraining(
            self.module_, self._loss, self.eps, self.norm, adversary=_ADVERSARY
        )

    @abstractmethod
    def _encoded(self, y: ArrayLike, like: Tensor) -> Tensor:
        """Return targets as the loss compares them with outputs for such inputs."""

    def certificate(
        self,
        X: ArrayLike,  # noqa: N803
        y: ArrayLike,
        *,
        rho: float,
        gamma: float | None = None,
    ) -> robust.Certificate:
        """Bound the mean loss under every shift of these data; for "wrm" only.

        See `neada.robust.certificate`. The bound holds for the given samples; that of a regressor
        is in units of `target_scale_` squared. It is certified for "linear" and, with
        cross-entropy, for "mlp" and similar networks. It is an estimate for other networks.

        Args:
            X: One sample per row.
            y: Their labels or targets.
            rho: The size of the shift: the mean squared distance that samples may be moved, in
                standardized units when `standardize` is on.
            gamma: The certificate's own price, if that of the training is too small.

        Raises:
            ValueError: The objective is "adversarial", or gamma is too small for a bound.
        """
        inputs = self._inputs(X)
        targets = self._encoded(y, inputs)
        if len(inputs) != len(targets):
            raise ValueError(f"there are {len(inputs)} rows in X but {len(targets)} targets")
        if self.objective != "wrm":
            raise ValueError(
                f"there is no certificate for objective={self.objective!r}: use objective='wrm'"
            )
        objective = robust.WRM(self.module_, self._loss, self.gamma)
        return robust.certificate(objective, [(inputs, targets)], rho=rho, gamma=gamma)


class RobustClassifier(NetworkClassifier, _Perturbed):
    r"""A classifier that is trained on adversarially perturbed inputs.

    With ``objective="wrm"`` the squared distance of the perturbation is penalized, with
    ``objective="adversarial"`` the distance is bounded:

    .. math::
        \min_x \frac1n \sum_i \max_{z_i} \ell(x; z_i) - \gamma \|z_i - v_i\|_2^2
        \qquad\text{or}\qquad
        \min_x \frac1n \sum_i \max_{\|z_i - v_i\| \le \epsilon} \ell(x; z_i)

    with the cross-entropy :math:`\ell`. The adversary has no learning rate; see `neada.robust`.
    With `standardize`, distances are in units of each feature's standard deviation over the
    training data.

    Args:
        module: "linear", "mlp", or a function of (num_features, num_outputs) that returns a new
            network, such as a class derived from `torch.nn.Module`.
        hidden: Widths of the hidden layers of "mlp", which have ELU between them.
        objective: "wrm" or "adversarial".
        gamma: The penalty per unit of squared distance, for "wrm"; a small penalty is a strong
            adversary.
        eps: The largest distance, for "adversarial".
        norm: The norm of the distance, for "adversarial": "linf", "l2" or "l1".
        standardize: Scale every feature to mean 0 and standard deviation 1 on the training data.
        lr: The initial learning rate of Adam for the network; it is reduced on plateaus.
        batch_size: Samples per batch; None: at least about 4 batches of at most 256 samples.
        max_iter: The largest number of epochs; None: 1000 steps, but at least 20 epochs.
        tol: The learning rate is reduced if the robust loss, in nats, does not fall by `tol`; the
            fourth time, training ends.
        random_state: The seed of the initialization and of the order of the samples.
        verbose: Write the robust loss of every epoch to stderr.

    Attributes:
        classes_: The labels, sorted.
        module_: The network, in evaluation mode; its inputs are standardized with `standardize`.
            It is in float32 if X is, and otherwise in float64.
        scaler_: The `StandardScaler` of the inputs, or None.
        loss_curve_: The mean robust loss of each epoch.
        n_iter_: The number of epochs.
        n_features_in_: The number of columns of X.
        feature_names_in_: The names of the columns, if X was a data frame.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> X, y = load_wine(return_X_y=True)
        >>> model = RobustClassifier(random_state=0).fit(X, y)
        >>> model.score(X, y) > 0.95
        True
        >>> model.certificate(X, y, rho=0.1, gamma=5.0).kind
        'certified'
    """

    _loss = staticmethod(cross_entropy)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Train a new network.

        Args:
            X: One sample per row: an array or a frame of numbers.
            y: One label per sample, of any kind.

        Raises:
            ValueError: A parameter is out of range, or it is not at its default and the module or
                the objective does not use it.
        """
        rows, targets = self._checked_classes(X, y)
        return self._fit_perturbed(rows, targets, len(self.classes_))

    def _encoded(self, y: ArrayLike, like: Tensor) -> Tensor:
        encoder = LabelEncoder()
        encoder.classes_ = self.classes_
        return torch.as_tensor(encoder.transform(y), dtype=torch.int64)


@dataclass(eq=False, repr=False, kw_only=True)
class RobustRegressor(RegressorMixin, _Perturbed):
    r"""A regressor that is trained on adversarially perturbed inputs.

    As `RobustClassifier`, with the squared error. The target is always scaled to mean 0 and
    variance 1 on the training data, and the loss is in these units.

    With ``objective="wrm"`` and a linear network the worst case of a residual r is
    :math:`r^2 / (1 - \|w\|^2/\gamma)`: the weights stay within a ball of radius
    sqrt(gamma) and shrink as in ridge regression.

    Args:
        module: As for `RobustClassifier`; one output.
        hidden: As for `RobustClassifier`.
        objective: "wrm" or "adversarial".
        gamma: The penalty per unit of squared distance, for "wrm", in units of the target's
            variance.
        eps: The largest distance, for "adversarial".
        norm: The norm of the distance, for "adversarial": "linf", "l2" or "l1".
        standardize: As for `RobustClassifier`; it concerns X only.
        lr: As for `RobustClassifier`.
        batch_size: As for `RobustClassifier`.
        max_iter: As for `RobustClassifier`.
        tol: As for `RobustClassifier`, in units of the target's variance.
        random_state: As for `RobustClassifier`.
        verbose: As for `RobustClassifier`.

    Attributes:
        target_mean_: The mean of y.
        target_scale_: Its standard deviation.
        module_: As for `RobustClassifier`; its outputs are standardized targets.
        scaler_: As for `RobustClassifier`.
        loss_curve_: As for `RobustClassifier`.
        n_iter_: Epochs.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, if X was a frame with names.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = RobustRegressor(random_state=0).fit(X, y)
        >>> model.score(X, y) > 0.4
        True
    """

    gamma: float = 4.0
    _loss = staticmethod(mse_loss)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Train a new network.

        Args:
            X: One sample per row: an array or a frame of numbers.
            y: One number per sample.

        Raises:
            ValueError: As for `RobustClassifier.fit`.
        """
        rows, numbers = self._checked(X, y, y_numeric=True)
        numbers = numbers.astype(np.float64)
        self.target_mean_ = float(numbers.mean())
        self.target_scale_ = float(numbers.std()) or 1.0
        return self._fit_perturbed(rows, self._column(numbers, rows.dtype), 1)

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803
        """The predicted target of each sample.

        Args:
            X: One sample per row.
        """
        outputs: Array = self._outputs(X).squeeze(1).numpy(force=True)
        return outputs * self.target_scale_ + self.target_mean_

    def _encoded(self, y: ArrayLike, like: Tensor) -> Tensor:
        return self._column(column_or_1d(y).astype(np.float64), like.numpy().dtype)

    def _column(self, numbers: Array, dtype: Any) -> Tensor:
        """Targets in the network's units."""
        standardized = (numbers - self.target_mean_) / self.target_scale_
        return torch.tensor(standardized.astype(dtype)).unsqueeze(1)
