"""Robust training of any network: objectives whose y is an adversary.

`WRM` perturbs the inputs at a price, `AdversarialTraining` within a distance, `TRADES` likewise to
move the outputs, and `GroupDRO` shifts the mixture of groups. Each has a `step` for a loop of
one's own:

>>> import torch
>>> from torch import nn
>>> import neada.robust
>>> model = nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 2))
>>> loader = [(torch.randn(8, 2), torch.randint(2, (8,)))]

>>> robust = neada.robust.WRM(model, nn.functional.cross_entropy, gamma=1.3)
>>> x_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
>>> for inputs, targets in loader:
...     info = robust.step(x_optimizer, inputs, targets)
>>> info.inner_steps
1

With `PerturbationStore` y persists between epochs, and `certificate` says what the training has
achieved against every shift of the distribution.
"""

from neada.robust.adversarial import AdversarialTraining
from neada.robust.certificate import Certificate, certificate
from neada.robust.group import GroupDRO
from neada.robust.records import Perturbed, RobustInfo
from neada.robust.store import PerturbationStore
from neada.robust.trades import TRADES
from neada.robust.wrm import WRM

__all__ = [
    "TRADES",
    "WRM",
    "AdversarialTraining",
    "Certificate",
    "GroupDRO",
    "PerturbationStore",
    "Perturbed",
    "RobustInfo",
    "certificate",
]
