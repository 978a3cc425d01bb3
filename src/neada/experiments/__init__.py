"""One module per figure or theorem of the paper, each with its runs, claims and figure."""

from neada.experiments.claim import Claim
from neada.experiments.experiment import SCALES, Record
from neada.experiments.registry import get, names
from neada.experiments.runner import Outcome, reproduce

__all__ = ["SCALES", "Claim", "Outcome", "Record", "get", "names", "reproduce"]
