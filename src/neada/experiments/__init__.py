"""One module per figure or theorem of the paper, each with its runs, claims and figure."""

from neada.experiments.experiment import SCALES, Claim, Record, configs, make, names
from neada.experiments.runner import Outcome, reproduce

__all__ = ["SCALES", "Claim", "Outcome", "Record", "configs", "make", "names", "reproduce"]
