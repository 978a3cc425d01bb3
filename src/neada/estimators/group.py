"""A classifier that is trained for the worst group."""

import copy
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import column_or_1d
from torch import Tensor
from torch.nn.functional import cross_entropy

from neada import robust
from neada.checks import check_number
from neada.estimators.base import Array, NetworkClassifier

__all__ = ["GroupRobustClassifier"]


@dataclass(eq=False, repr=False, kw_only=True)
class GroupRobustClassifier(NetworkClassifier):
    r"""A classifier for the worst mixture of groups.

    .. math::
        \min_x\ \max_{y \in \Delta}\ \sum_g y_g\,\ell_g(x)
        - \lambda \sum_g y_g \log (G y_g)

    with the mean cross-entropy :math:`\ell_g` of each of the G groups, regardless of their sizes.
    A part of every group is held out, and the network of the epoch with the best worst-group
    accuracy on it is kept; ties are broken by the largest loss of a group.

    With `sklearn.set_config(enable_metadata_routing=True)` and ``set_fit_request(groups=True)``
    pipelines, searches and cross-validation pass `groups` on.

    Args:
        module: As for `RobustClassifier`.
        hidden: As for `RobustClassifier`.
        strength: The factor :math:`\lambda` of the regularizer, which keeps the mixture near equal
            shares; with a small one, only the worst group counts.
        regularizer: "kl" or "chi2"; see `neada.robust.GroupDRO`.
        validation_fraction: The share of each group that is held out, at least one sample of a
            group of two; with 0, the training data are used for the selection.
        standardize: As for `RobustClassifier`.
        lr: As for `RobustClassifier`.
        batch_size: As for `RobustClassifier`.
        max_iter: As for `RobustClassifier`.
        tol: As for `RobustClassifier`.
        random_state: As for `RobustClassifier`, and of the part that is held out.
        verbose: As for `RobustClassifier`.

    Attributes:
        classes_: The labels, sorted.
        groups_: The groups, sorted.
        group_weights_: The adversary's last weights :math:`y` of the groups.
        validation_curve_: The accuracy of the worst group on the held-out part after every epoch.
        best_iter_: The epoch that was kept, from 1.
        module_: As for `RobustClassifier`.
        scaler_: As for `RobustClassifier`.
        loss_curve_: As for `RobustClassifier`.
        n_iter_: Epochs.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, if X was a frame with names.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> X, y = load_wine(return_X_y=True)
        >>> model = GroupRobustClassifier(random_state=0).fit(X, y)
        >>> min(model.group_scores(X, y).values()) > 0.9
        True
    """

    strength: float = 0.1
    regularizer: Literal["kl", "chi2"] = "kl"
    validation_fraction: float = 0.2

    def fit(
        self,
        X: ArrayLike,  # noqa: N803
        y: ArrayLike,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Train a new network.

        Args:
            X: One sample per row: an array or a frame of numbers.
            y: One label per sample, of any kind.
            groups: The group of each sample, of any kind; None makes the classes the groups.
        """
        check_number("validation_fraction", self.validation_fraction, strict=False, below=1.0)
        rows, targets = self._checked_classes(X, y)
        self.groups_, numbers = _numbered(y if groups is None else groups, len(rows))
        with self._prepared(rows, len(self.classes_)) as inputs:
            held_out = self._held_out(numbers)
            train = ~held_out
            judged = held_out if held_out.any() else train
            evaluated = [part[judged] for part in (inputs, targets, numbers)]
            best, state = (-1.0, 0.0), {}
            self.validation_curve_: list[float] = []

            def keep_best() -> None:
                nonlocal best, state
                found = self._worst_group(*evaluated)
                self.validation_curve_.append(found[0])
                if found > best:
                    best, self.best_iter_ = found, len(self.validation_curve_)
                    state = copy.deepcopy(self.module_.state_dict())

            objective = robust.GroupDRO(
                self.module_,
                cross_entropy,
                len(self.groups_),
                regularizer=self.regularizer,
                strength=self.strength,
            )
            self._train(
                lambda x_optimizer, inputs, targets, ids, groups: objective.step(
                    x_optimizer, inputs, targets, groups
                ),
                inputs[train],
                targets[train],
                extras=[numbers[train]],
                after_epoch=keep_best,
            )
            self.group_weights_: Array = objective.weights.detach().numpy(force=True)
            self.module_.load_state_dict(state)
        return self

    def group_scores(
        self,
        X: ArrayLike,  # noqa: N803
        y: ArrayLike,
        groups: ArrayLike | None = None,
    ) -> dict[Any, float]:
        """The accuracy of each group.

        Args:
            X: One sample per row.
            y: Their labels.
            groups: Their groups; None makes the classes the groups.

        Returns:
            From the groups that there are to accuracies.
        """
        right = self.predict(X) == column_or_1d(y)
        known, numbers = _numbered(y if groups is None else groups, len(right))
        return {group: float(right[numbers == i].mean()) for i, group in enumerate(known.tolist())}

    def _held_out(self, groups: Tensor) -> Tensor:
        """Select the samples to validate with: a share of every group, never all of it."""
        chosen = torch.zeros(len(groups), dtype=torch.bool)
        for group in range(len(self.groups_)):
            members = torch.nonzero(groups == group).squeeze(1)
            wanted = round(self.validation_fraction * len(members))
            if self.validation_fraction > 0.0:
                wanted = min(max(1, wanted), len(members) - 1)
            chosen[members[torch.randperm(len(members))[:wanted]]] = True
        return chosen

    def _worst_group(self, inputs: Tensor, targets: Tensor, groups: Tensor) -> tuple[float, float]:
        """Return the smallest accuracy of a group, and minus the largest loss of a group."""
        self.module_.eval()
        with torch.no_grad():
            logits = self.module_(inputs)
        self.module_.train()
        right = (logits.argmax(1) == targets).double()
        losses = cross_entropy(logits, targets, reduction="none").double()
        members = [groups == group for group in set(groups.tolist())]
        accuracy = min(right[each].mean().item() for each in members)
        return accuracy, -max(losses[each].mean().item() for each in members)


def _numbered(groups: ArrayLike, num_samples: int) -> tuple[Array, Tensor]:
    """Return the distinct groups, and the index of each sample's group."""
    labels = column_or_1d(groups)
    if len(labels) != num_samples:
        raise ValueError(f"there are {num_samples} samples but {len(labels)} groups: give one each")
    known, numbers = np.unique(labels, return_inverse=True)
    return known, torch.as_tensor(numbers, dtype=torch.int64)
