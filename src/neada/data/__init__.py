"""Data sets in memory (the paper's, real images, your own `.npz`) and batches of them.

`load` returns a `Dataset` by name. `Batches` iterates over tensors epoch by epoch and can resume
at any batch. A missing or damaged file raises a `DataError`.
"""

from neada.data.batches import Batches
from neada.data.dataset import DataError, Dataset
from neada.data.sources import load, names

__all__ = ["Batches", "DataError", "Dataset", "load", "names"]
