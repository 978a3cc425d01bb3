"""TRADES: the loss of clean inputs, and how far outputs can be moved (Zhang et al. 2019)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neada import tensors
from neada.checks import check_number
from neada.robust.adversarial import BallObjective, Norm
from neada.robust.adversary import Adversary
from neada.robust.losses import Loss, Network, sample_losses
from neada.robust.objective import Bounds
from neada.sets import Set

__all__ = ["TRADES"]

_NOISE = 1e-3


class TRADES(BallObjective):
    r"""Train on clean inputs and keep the outputs from changing within a distance of them.

    .. math::
        \min_x\ \frac1n \sum_i \ell(x; v_i) + \beta
        \max_{\|z_i - v_i\| \le \epsilon} \mathrm{KL}\big(p_x(v_i) \,\|\, p_x(z_i)\big)

    with :math:`p_x` the softmax of the model's outputs. `AdversarialTraining` requires the right
    label everywhere in the ball; here the label is used at the clean input only, and :math:`\beta`
    is the price of outputs that differ from the clean ones: larger values give more robust and less
    accurate models.

    The inner loop is that of `AdversarialTraining`, with :math:`\beta\,\mathrm{KL}` as what a
    sample maximizes. The clean outputs are found once per batch, as the inner loop evaluates the
    model, which counts as one value; in the loss of the model the gradient goes through both
    outputs. At :math:`z = v` the divergence has no gradient, so y starts at the clean input plus
    normal noise of standard deviation 0.001, in the ball and the bounds; a start that is random or
    stored needs no noise.

    The loss takes two passes through the model, in the mode it is in: first the clean inputs, then
    the perturbed ones. In training mode batch norm therefore normalizes each half by its own
    statistics, and the running ones move twice with every step. (The released code of the authors
    passes the clean inputs once more for the divergence: the same value without dropout.)

    Required: the radius eps and the price beta. There is no certificate.

    Args:
        model: Any network with one output per class in dimension 1; over further dimensions, those
            of an image for example, the divergence is averaged.
        loss: Of the clean inputs; as for `WRM`.
        eps: The radius of every sample's ball.
        norm: "l2", "linf" or "l1", over all dimensions of a sample.
        beta: The price of the divergence; 0 is training on clean inputs.
        bounds: The valid range of inputs, (low, high); numbers or tensors that broadcast.
        adversary: How the inputs are perturbed, as for `AdversarialTraining`.

    Attributes:
        generator: The source of the noise; None for torch's global one. Its state is part of the
            `state_dict`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> robust = TRADES(model, nn.functional.cross_entropy, eps=0.1, bounds=(0.0, 1.0))
        >>> x_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> images, labels = torch.rand(8, 1, 2, 2), torch.randint(2, (8,))
        >>> clean_loss = nn.functional.cross_entropy(model(images), labels).item()
        >>> info = robust.step(x_optimizer, images, labels)
        >>> info.loss > clean_loss
        True

    Reference:
        Zhang, Yu, Jiao, Xing, El Ghaoui, Jordan: Theoretically Principled Trade-off between
        Robustness and Accuracy, ICML 2019.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        eps: float,
        norm: Norm = "linf",
        *,
        beta: float = 6.0,
        bounds: Bounds | None = None,
        adversary: Adversary = Adversary(),  # noqa: B008 (frozen)
    ) -> None:
        check_number("beta", beta, strict=False)
        super().__init__(model, loss, eps, norm, bounds=bounds, adversary=adversary)
        self.beta = beta

    def _x_losses(self, model: Network, y: Tensor, clean: Tensor, targets: Any) -> Tensor:
        outputs = model(clean)
        losses = sample_losses(self._sample_loss(outputs, targets), len(clean))
        return losses + self.beta * _divergences(_log_probabilities(outputs), model(y))

    def _values(self, model: Network, y: Tensor, clean: Tensor, reference: Any) -> Tensor:
        return self.beta * _divergences(reference, model(y))

    def _reference(self, model: Network, clean: Tensor, targets: Any) -> Tensor:
        self.counters.check_budget()
        self.calls_value += 1
        tensors.drop_cached_casts()
        with torch.no_grad():
            return _log_probabilities(model(clean))

    def _started(self, clean: Tensor, region: Set | None, ids: Tensor | None) -> Tensor:
        start = super()._started(clean, region, ids)
        unmoved = (start == clean).flatten(1).all(1)
        if region is None or not unmoved.any():
            return start
        place = start.device if self.generator is None else self.generator.device
        noise = torch.empty_like(start, device=place)
        noise = noise.normal_(0.0, _NOISE, generator=self.generator).to(start.device)
        noise[~unmoved] = 0.0
        return region.project_(start + noise)


def _log_probabilities(outputs: Tensor) -> Tensor:
    """Of the classes, in dimension 1."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        raise ValueError(
            "TRADES compares probabilities of classes, and the outputs have shape "
            f"{tuple(outputs.shape)}: use a model with one output per class in dimension 1, two "
            "where there are two classes"
        )
    wide = torch.promote_types(outputs.dtype, torch.float32)
    return functional.log_softmax(outputs, 1, dtype=wide)


def _divergences(log_p: Tensor, outputs: Tensor) -> Tensor:
    """KL(p || q) of every sample, q being the softmax of these outputs."""
    p = log_p.exp()
    # A class with probability 0 adds 0, though the difference of its logarithms may be NaN.
    differences = torch.where(p > 0.0, log_p - _log_probabilities(outputs), 0.0)
    return sample_losses((p * differences).sum(1), len(p))
