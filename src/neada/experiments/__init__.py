"""One module per figure or theorem of the paper, each with its runs, claims and figure."""

from neada.experiments.experiment import (
    SCALE_WORDS,
    SCALES,
    Claim,
    Record,
    configs,
    make,
    names,
    run_folder,
)
from neada.experiments.runner import Outcome, last_request, reproduce

__all__ = [
    "SCALES",
    "SCALE_WORDS",
    "Claim",
    "Outcome",
    "Record",
    "configs",
    "last_request",
    "make",
    "names",
    "reproduce",
    "run_folder",
]
