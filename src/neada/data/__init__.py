"""Data sets in memory (the paper's, real images, your own `.npz`) and batches of them.

`load` gives a `Dataset` by name, `Batches` goes through tensors epoch by epoch and can go on from
any batch. A file that is not what it claims to be raises a `DataError` of one sentence.
"""

from neada.data.batches import Batches
from neada.data.dataset import DataError, Dataset
from neada.data.sources import load, names

__all__ = ["Batches", "DataError", "Dataset", "load", "names"]
