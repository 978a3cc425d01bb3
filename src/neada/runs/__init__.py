"""The run folder: config, environment, metrics, checkpoints; whole or not there."""

from neada.runs.checkpoint import Checkpoints
from neada.runs.environment import environment
from neada.runs.folder import Run

__all__ = ["Checkpoints", "Run", "environment"]
