"""A perturbation store that is spread over the ranks of a process group."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neada import distributed
from neada.robust.store import PerturbationStore, check_ids

__all__ = ["ShardedStore", "store_files"]

_BLOCK = 4096
"""Rows that are moved at a time when another number of ranks takes over."""


class ShardedStore(PerturbationStore):
    """One perturbation per sample of a data set; with n ranks, rank i % n keeps that of sample i.

    Any rank may ask for any sample, so batches can be shuffled over the ranks: `get`, `put`,
    `commit` and the states are collectives, and every rank must call them together. In memory the
    state is that of a `PerturbationStore` with all samples, complete on rank 0. With a path every
    rank has a file of its own beside it, and a run that goes on with another number of ranks
    gathers the rows from the files of the ranks before, which rank 0 must be able to read.

    Args:
        num_samples: How many samples there are; ids are from 0 to one less.
        sample_shape: The shape of one sample.
        dtype: float32, float64 or float16.
        path: The file of a single process; None to keep everything in memory.
        num_kept: How many of the latest commits can be gone back to, with a path.
    """

    def __init__(
        self,
        num_samples: int,
        sample_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        path: Path | None = None,
        *,
        num_kept: int = 2,
    ) -> None:
        self._all_samples = num_samples
        self._rank, self._num_ranks = distributed.rank(), distributed.num_ranks()
        self._stem = path
        self._outdated: list[Path] = []
        self._commits_left = 0
        self._num_before = 0
        self._before: list[PerturbationStore] = []
        self._trouble: ValueError | None = None
        own = self._shard_size(self._rank, self._num_ranks)
        file = None if path is None else _shard_path(path, self._rank, self._num_ranks)
        super().__init__(own, sample_shape, dtype, file, num_kept=num_kept)

    def reopen(self) -> None:
        """Forget what is known and look at the file of this rank.

        What is wrong with it is said when it is used: another number of ranks may have left it.
        """
        try:
            super().reopen()
            self._trouble = None
        except ValueError as error:
            self._trouble = error

    def settle(self) -> None:
        """Bring the files to the state that the store is at."""
        if self._num_before:
            num_before, self._num_before = self._num_before, 0
            self._take_over(num_before)
        if self._trouble is not None:
            raise self._trouble
        super().settle()

    def get(self, ids: Tensor) -> Tensor:
        """The perturbations of some samples, one row each, on the cpu."""
        self.settle()
        if self._num_ranks == 1:
            return super().get(ids)
        order, counts = self._by_owner(ids)
        asked, asked_counts = distributed.exchange(ids[order], counts)
        rows = super().get(asked // self._num_ranks)
        answers, _ = distributed.exchange(rows, asked_counts)
        return torch.empty_like(answers).index_copy_(0, order, answers)

    def put(self, ids: Tensor, delta: Tensor) -> None:
        """Set the perturbations of some samples; of an id that comes twice the last one counts."""
        self.settle()
        if self._num_ranks == 1:
            super().put(ids, delta)
            return
        kept = distributed.counted(len(ids))  # a sample that stands in for none is not kept
        ids, delta = ids[:kept], delta[:kept]
        order, counts = self._by_owner(ids)
        rows = delta.detach().to("cpu", self.dtype)[order]
        places, _ = distributed.exchange(ids[order], counts)
        rows, _ = distributed.exchange(rows, counts)
        super().put(places // self._num_ranks, rows)

    def commit(self) -> None:
        """Make everything that was put permanent; without a path there is nothing to do."""
        super().commit()
        if self._commits_left == 0:
            self.tidy()
        self._commits_left -= 1

    def tidy(self) -> None:
        """Remove the files of another number of ranks, which were kept for earlier states."""
        for path in self._outdated:
            path.unlink(missing_ok=True)
        self._outdated = []

    def state_dict(self) -> dict[str, Any]:
        """The perturbations of all samples, or with a path the numbers of the last commits."""
        own = super().state_dict()
        if self._num_ranks == 1:
            return own
        if self.path is not None:
            return {"generations": distributed.gather(own["generation"])}
        shape = (self._all_samples, *self.sample_shape)
        values = torch.empty(shape if self._rank == 0 else 0, dtype=self.dtype)
        for place, shard in enumerate(distributed.gather_on_first(own["values"])):
            values[place :: self._num_ranks] = shard
        return {"values": values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to a saved state, of any number of ranks."""
        values = state_dict.get("values")
        if values is not None and self.path is None:
            if len(values) != self._all_samples:
                raise ValueError(
                    f"the state is of {len(values)} samples, and the store of {self._all_samples}"
                )
            super().load_state_dict({"values": values[self._rank :: self._num_ranks]})
            return
        generations = state_dict.get("generations", [state_dict.get("generation")])
        if values is not None or generations == [None] or self._stem is None:
            super().load_state_dict(state_dict)  # it says what does not fit
        else:
            self._num_before = 0
            if len(generations) != self._num_ranks:
                self._before = self._opened(self._stem, generations)
                self._num_before = len(generations)
            elif self._trouble is not None:
                raise self._trouble
            else:
                super().load_state_dict({"generation": generations[self._rank]})
            if self._rank == 0:
                self._outdated = self._others(self._stem)
            # Until no checkpoint that is kept knows the files of another number of ranks.
            self._commits_left = self.num_kept

    def _opened(self, stem: Path, generations: list[int]) -> list[PerturbationStore]:
        """The stores of another number of ranks, at some commits; on rank 0, which reads them."""
        stores = []
        for place, generation in enumerate(generations if self._rank == 0 else []):
            size = self._shard_size(place, len(generations))
            path = _shard_path(stem, place, len(generations))
            store = PerturbationStore(
                size, self.sample_shape, self.dtype, path, num_kept=self.num_kept
            )
            store.load_state_dict({"generation": generation})
            stores.append(store)
        return stores

    def _take_over(self, num_before: int) -> None:
        """Fill the files of these ranks with the rows of another number of ranks."""
        self._begin_again()
        for place in range(num_before):
            size = self._shard_size(place, num_before)
            for start in range(0, size, _BLOCK):
                rows = torch.arange(start, min(start + _BLOCK, size))
                if self._rank > 0:
                    rows = rows[:0]
                    self.put(rows, torch.empty(0, *self.sample_shape))
                else:
                    self.put(rows * num_before + place, self._before[place].get(rows))
        self._before = []
        super().commit()

    def _others(self, stem: Path) -> list[Path]:
        """The files that belong to other numbers of ranks."""
        own = tuple(path.name for path in _shard_paths(stem, self._num_ranks))
        return [path for path in store_files(stem) if not path.name.startswith(own)]

    def _begin_again(self) -> None:
        """Remove what an earlier attempt to take over has left in the file of this rank."""
        assert self.path is not None and self._stem is not None
        for path in store_files(self._stem):
            if path.name.startswith(self.path.name):
                path.unlink(missing_ok=True)
        self.reopen()

    def _shard_size(self, place: int, num_ranks: int) -> int:
        return max(1, len(range(place, self._all_samples, num_ranks)))

    def _by_owner(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """The order that sorts samples by the rank that keeps them, and how many each keeps.

        Before rows are exchanged the ranks agree that none of them has met an error.
        """
        check_ids(ids)
        ids = ids.detach().to("cpu", torch.int64)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._all_samples:
            raise ValueError(
                f"ids must be from 0 to {self._all_samples - 1}, got {int(ids.min())} to "
                f"{int(ids.max())}"
            )
        distributed.any_rank(False, ids)
        owner = ids % self._num_ranks
        order = owner.argsort(stable=True)
        return order, torch.bincount(owner, minlength=self._num_ranks).tolist()


def store_files(stem: Path) -> list[Path]:
    """The files of a store, of any number of ranks.

    Args:
        stem: The path of the store of a single process.
    """
    pattern = re.compile(
        rf"{re.escape(stem.stem)}(-\d+-of-\d+)?{re.escape(stem.suffix)}"
        r"(\.sums|\.pending|\.\d+\.journal)?"
    )
    return sorted(path for path in stem.parent.glob("*") if pattern.fullmatch(path.name))


def _shard_path(stem: Path, place: int, num_ranks: int) -> Path:
    """The file of one rank."""
    if num_ranks == 1:
        return stem
    return stem.with_name(f"{stem.stem}-{place}-of-{num_ranks}{stem.suffix}")


def _shard_paths(stem: Path, num_ranks: int) -> list[Path]:
    return [_shard_path(stem, place, num_ranks) for place in range(num_ranks)]
