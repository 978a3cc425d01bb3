"""The perturbation store: what is put is found again, and a crash leaves the last commit."""

import contextlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.inner import InnerOptions
from neada.robust import WRM, PerturbationStore, ShardedStore, journal
from neada.robust.store import PerturbationStore as Store
from neada.stopping import FixedSteps

NUM, SHAPE = 20, (2, 3)


def rows(seed: int, num: int) -> Tensor:
    return torch.randn(num, *SHAPE, generator=torch.Generator().manual_seed(seed))


def contents(opened: Store) -> Tensor:
    return opened.get(torch.arange(opened.num_samples))


@pytest.fixture(params=["memory", "file"])
def path(request: Any, tmp_path: Path) -> Path | None:
    return tmp_path / "store.npy" if request.param == "file" else None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_are_found_by_id(path: Path | None, dtype: torch.dtype) -> None:
    kept = PerturbationStore(NUM, SHAPE, dtype, path)
    expected = torch.zeros(NUM, *SHAPE, dtype=dtype)
    assert torch.equal(contents(kept), expected)
    generator = torch.Generator().manual_seed(0)
    for seed in range(12):
        ids = torch.randperm(NUM, generator=generator)[:7]
        delta = rows(seed, 7)
        kept.put(ids, delta)
        expected[ids] = delta.to(dtype)
        assert torch.equal(kept.get(ids), delta.to(dtype))
        if seed % 3 == 2:
            kept.commit()
        assert torch.equal(contents(kept), expected)
    assert kept.get(torch.tensor([], dtype=torch.int64)).shape == (0, *SHAPE)


def test_of_a_repeated_id_the_last_row_counts(path: Path | None) -> None:
    kept = PerturbationStore(NUM, SHAPE, path=path)
    delta = rows(0, 4)
    kept.put(torch.tensor([3, 5, 3, 5]), delta)
    assert torch.equal(kept.get(torch.tensor([5, 3, 3])), delta[[3, 2, 2]])


def test_what_is_returned_is_a_copy(path: Path | None) -> None:
    kept = PerturbationStore(NUM, SHAPE, path=path)
    kept.get(torch.tensor([1])).fill_(9.0)
    delta = rows(0, 1)
    kept.put(torch.tensor([2]), delta)
    delta.fill_(9.0)
    assert not bool((contents(kept) == 9.0).any())


def test_a_state_is_gone_back_to(path: Path | None) -> None:
    kept = PerturbationStore(NUM, SHAPE, path=path)
    states, seen = [], []
    for seed in range(6):
        kept.put(torch.arange(seed, seed + 5), rows(seed, 5))
        kept.commit()
        states.append(kept.state_dict())
        seen.append(contents(kept))
    kept.put(torch.arange(20), rows(9, 20))
    for back in (5, 4):
        kept.load_state_dict(states[back])
        assert torch.equal(contents(kept), seen[back])
    if path is not None:
        again = PerturbationStore(NUM, SHAPE, path=path)
        again.load_state_dict(states[4])
        assert torch.equal(contents(again), seen[4])
        with pytest.raises(ValueError, match=r"of commit 1, but .* can be at commits 4 to 5 only"):
            again.load_state_dict(states[0])
        again.put(torch.arange(3), rows(7, 3))
        with pytest.raises(RuntimeError, match="3 perturbations are not committed: call commit"):
            again.state_dict()


def test_the_file_lags_behind_by_the_commits_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    kept = PerturbationStore(NUM, SHAPE, path=path, num_kept=3)
    for seed in range(5):
        kept.put(torch.tensor([seed]), rows(seed, 1))
        kept.commit()
    names = sorted(file.name for file in tmp_path.iterdir())
    journals = [f"store.npy.{number}.journal" for number in (3, 4, 5)]
    assert names == ["store.npy", *journals, "store.npy.sums"]
    held = torch.from_numpy(np.load(path))
    assert held.flatten(1).any(dim=1).tolist() == [True, True] + [False] * 18
    kept.commit()  # nothing was put, so nothing happens
    assert sorted(file.name for file in tmp_path.iterdir()) == names


def test_the_puts_of_a_dead_run_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    first = PerturbationStore(NUM, SHAPE, path=path)
    first.put(torch.arange(4), rows(0, 4))
    first.commit()
    seen = contents(first)
    first.put(torch.arange(9), rows(1, 9))
    again = PerturbationStore(NUM, SHAPE, path=path)
    assert torch.equal(contents(again), seen)
    again.settle()
    assert not (tmp_path / "store.npy.pending").exists()


class CrashError(Exception):
    """The process dies here."""


def test_a_crash_at_any_moment_of_a_commit_leaves_one_commit_or_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = 0
    left: list[float] = []

    def run(folder: Path, dies_at: float) -> tuple[list[Tensor], int]:
        """Commits one after the other; the contents after each, and how many succeeded."""
        nonlocal moments
        folder.mkdir()
        left[:] = [dies_at]
        seen, done = [torch.zeros(NUM, *SHAPE)], 0
        with contextlib.suppress(CrashError):
            kept = PerturbationStore(NUM, SHAPE, path=folder / "store.npy", num_kept=1)
            for done in range(4):
                kept.put(torch.arange(done, done + 6), rows(done, 6))
                seen.append(contents(kept))
                kept.commit()
            done = 4
        return seen, done

    def dying(function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal moments
            moments += 1
            left[0] -= 1
            if left[0] <= 0:  # a dead process does not tidy up either
                raise CrashError
            return function(*args, **kwargs)

        return called

    calls = (os, "fsync"), (os, "replace"), (Path, "unlink"), (journal, "_write_rows")
    for module, name in calls:
        monkeypatch.setattr(module, name, dying(getattr(module, name)))
    run(tmp_path / "whole", math.inf)
    num_moments, outcomes = moments, set()
    assert num_moments > 30
    for moment in range(1, num_moments + 1):
        folder = tmp_path / str(moment)
        seen, done = run(folder, moment)
        left[:] = [math.inf]
        opened = PerturbationStore(NUM, SHAPE, path=folder / "store.npy", num_kept=1)
        found = contents(opened)
        opened.settle()
        assert torch.equal(contents(opened), found)
        assert not list(folder.glob(".*"))
        at = [i for i in (done, done + 1) if i < len(seen) and torch.equal(found, seen[i])]
        assert at, f"neither commit {done} nor the next after a crash at moment {moment}"
        outcomes.add(at[0] - done)
        reopened = PerturbationStore(NUM, SHAPE, path=folder / "store.npy", num_kept=1)
        reopened.load_state_dict({"generation": done})
        assert torch.equal(contents(reopened), seen[done])
    assert outcomes == {0, 1}


WRITER = """
import sys, torch
from neada.robust import PerturbationStore
store = PerturbationStore(50, (40,), path=sys.argv[1])
print("ready", flush=True)
for number in range(store.generation + 1, 10**6):
    store.put(torch.arange(number, number + 20) % 50, torch.full((20, 40), float(number)))
    store.commit()
"""


def test_a_killed_process_leaves_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(timeout=0.15)
        writer.send_signal(signal.SIGKILL)
    opened = PerturbationStore(50, (40,), path=path)
    expected = torch.zeros(50, 40)
    for number in range(1, opened.generation + 1):
        expected[torch.arange(number, number + 20) % 50] = float(number)
    assert torch.equal(contents(opened), expected)


def test_damaged_journals_end_the_sequence(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    kept = PerturbationStore(NUM, SHAPE, path=path, num_kept=4)
    seen = [contents(kept)]
    for seed in range(3):
        kept.put(torch.arange(seed, seed + 5), rows(seed, 5))
        kept.commit()
        seen.append(contents(kept))
    third = tmp_path / "store.npy.3.journal"
    whole = third.read_bytes()
    flipped = []
    for place in range(0, len(whole), 7):  # rows, ids, checksums, the seal
        flipped.append(bytearray(whole))
        flipped[-1][place] ^= 4
    for content in (b"", whole[:10], whole[:-1], whole[8:], whole + b"x", *flipped):
        third.write_bytes(content)
        opened = PerturbationStore(NUM, SHAPE, path=path, num_kept=4)
        assert torch.equal(contents(opened), seen[2])
    third.write_bytes(whole)
    assert torch.equal(contents(PerturbationStore(NUM, SHAPE, path=path, num_kept=4)), seen[3])


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_damage_anywhere_is_refused_or_ends_the_journals_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.npy"
    kept = PerturbationStore(NUM, SHAPE, path=path)
    seen = [contents(kept)]
    for seed in range(4):
        kept.put(torch.arange(seed, seed + 5), rows(seed, 5))
        kept.commit()
        seen.append(contents(kept))
    whole, outcomes = files_in(tmp_path), set()
    for name, content in whole.items():
        harmed = [content[:-1], content[1:], content + b"\0", b"", bytes(len(content)), None]
        for place in range(0, len(content), 5):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            harmed.append(bytes(flipped))
        for harm in harmed:
            (tmp_path / name).unlink() if harm is None else (tmp_path / name).write_bytes(harm)
            before = files_in(tmp_path)
            try:
                opened = PerturbationStore(NUM, SHAPE, path=path)
            except ValueError as error:
                assert "\n" not in str(error)
                outcomes.add(f"{name} refused")
            else:
                assert name.endswith("journal")
                assert opened.generation == int(name.split(".")[2]) - 1
                assert torch.equal(contents(opened), seen[opened.generation])
                outcomes.add(f"{name} left out")
                with pytest.raises(ValueError, match="removed or damaged"):
                    opened.load_state_dict({"generation": 4})
            assert files_in(tmp_path) == before
            (tmp_path / name).write_bytes(content)
    assert outcomes == {
        *("store.npy refused", "store.npy.sums refused"),
        *("store.npy.3.journal left out", "store.npy.4.journal left out"),
    }
    assert torch.equal(contents(PerturbationStore(NUM, SHAPE, path=path)), seen[4])


def test_damage_to_an_open_store_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    kept = PerturbationStore(NUM, SHAPE, path=path, num_kept=1)
    for ids in (torch.arange(9), torch.arange(3), torch.arange(3, 5)):
        kept.put(ids, rows(1, len(ids)))
        kept.commit()
    kept.put(torch.tensor([0]), rows(2, 1))
    for name, number in (("store.npy", 8), ("store.npy.3.journal", 4), ("store.npy.pending", 0)):
        content = bytearray((tmp_path / name).read_bytes())
        place = -24 * (NUM - number) if name == "store.npy" else 24 if number else 0
        content[place] ^= 1
        with (tmp_path / name).open("r+b") as file:  # in place, as a disk would
            file.write(content)
        with pytest.raises(ValueError, match=rf"{name} is damaged \(the row of sample {number}\)"):
            kept.get(torch.tensor([number]))


def test_journals_of_a_later_state_do_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    kept = PerturbationStore(NUM, SHAPE, path=path, num_kept=4)
    for seed in range(3):
        kept.put(torch.arange(seed, seed + 5), rows(seed, 5))
        kept.commit()
    (tmp_path / "store.npy.2.journal").write_bytes(b"damaged")
    again = PerturbationStore(NUM, SHAPE, path=path, num_kept=4)
    again.load_state_dict({"generation": 1})
    again.put(torch.arange(2), rows(5, 2))
    again.commit()
    opened = PerturbationStore(NUM, SHAPE, path=path, num_kept=4)
    assert opened.generation == 2
    assert torch.equal(contents(opened), contents(again))


def test_a_store_without_its_file_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    fresh = PerturbationStore(NUM, SHAPE, path=path)
    assert not bool(contents(fresh).any()) and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="store.npy is missing: put it back"):
        fresh.load_state_dict({"generation": 0})
    fresh.put(torch.arange(2), rows(0, 2))
    fresh.commit()
    path.unlink()
    with pytest.raises(ValueError, match=r"missing, and store.npy.1.journal belongs to it"):
        PerturbationStore(NUM, SHAPE, path=path)


def test_misuse_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "store.npy"
    kept = PerturbationStore(NUM, SHAPE, path=path)
    kept.put(torch.arange(0), torch.zeros(0, *SHAPE))
    kept.commit()
    assert kept.generation == 0  # nothing was put
    np.save(tmp_path / "columns.npy", np.zeros((NUM, *SHAPE), dtype="<f4", order="F"))
    with pytest.raises(ValueError, match="remove it or use another path"):
        PerturbationStore(NUM, SHAPE, path=tmp_path / "columns.npy")
    PerturbationStore(NUM, SHAPE, path=tmp_path / "other.npy").settle()
    (tmp_path / "other.npy.sums").write_text("??", encoding="utf-8")
    with pytest.raises(ValueError, match="sums is damaged"):
        PerturbationStore(NUM, SHAPE, path=tmp_path / "other.npy")
    (tmp_path / "other.npy.sums").unlink()
    with pytest.raises(ValueError, match="not a perturbation store with its checksums"):
        PerturbationStore(NUM, SHAPE, path=tmp_path / "other.npy")
    with pytest.raises(ValueError, match="not .*21, 2, 3.* remove it or use another path"):
        PerturbationStore(NUM + 1, SHAPE, path=path)
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    with pytest.raises(ValueError, match="text is not a perturbation store"):
        PerturbationStore(NUM, SHAPE, path=tmp_path / "text")
    with pytest.raises(ValueError, match="ids must be from 0 to 19, got -1 to 3"):
        kept.get(torch.tensor([3, -1]))
    with pytest.raises(TypeError, match="tensor of whole numbers"):
        kept.get(torch.tensor([3.0]))
    for wrong in (torch.tensor([True, False]), torch.tensor([1j])):
        with pytest.raises(TypeError, match="ids"):
            kept.get(wrong)
        with pytest.raises(TypeError, match="ids"):
            kept.put(wrong, torch.zeros(len(wrong), *SHAPE))
    with pytest.raises(ValueError, match=r"shape \(2, 2\), but 2 samples of shape \(2, 3\)"):
        kept.put(torch.tensor([3, 4]), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="dtype must be torch.float32"):
        PerturbationStore(NUM, SHAPE, torch.bfloat16)
    with pytest.raises(ValueError, match="num_samples must be a whole number at least 1"):
        PerturbationStore(0, SHAPE)
    in_memory = PerturbationStore(NUM, SHAPE)
    objective = WRM(nn.Linear(5, 2), functional.cross_entropy, 1.0, store=in_memory)
    with pytest.raises(ValueError, match=r"shape \(2, 2, 3\) for a batch of shape \(2, 5\)"):
        objective.perturb(torch.zeros(2, 5), torch.arange(2), torch.arange(2))
    with pytest.raises(ValueError, match="not of a store in memory"):
        in_memory.load_state_dict(kept.state_dict())
    with pytest.raises(ValueError, match="is of a store in memory, and this one has a file"):
        kept.load_state_dict(in_memory.state_dict())


# In an objective.


def test_y_starts_where_it_was_left(path: Path | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    inputs, targets = torch.randn(8, 6), torch.randint(2, (8,))
    ids = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5])

    def make(num_steps: int, kept: PerturbationStore | None) -> WRM:
        options: Any = {"y_optimizer": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True)}
        rule = FixedSteps(num_steps)
        return WRM(model, functional.cross_entropy, 1.0, stopping=rule, store=kept, **options)

    kept = PerturbationStore(NUM, (6,), path=path)
    warm = make(3, kept)
    for _ in range(4):
        worst = warm.perturb(inputs, targets, ids=ids)
    cold = make(12, None).perturb(inputs, targets)
    torch.testing.assert_close(worst.inputs, cold.inputs)
    torch.testing.assert_close(kept.get(ids), worst.inputs - inputs)
    mirrored = warm.perturb(inputs.flip(0), targets.flip(0), ids=ids.flip(0))
    again = make(15, None).perturb(inputs, targets)
    torch.testing.assert_close(mirrored.inputs.flip(0), again.inputs)
    with pytest.raises(ValueError, match="has a perturbation store: pass ids="):
        warm.perturb(inputs, targets)


def test_a_stored_start_is_put_into_the_box() -> None:
    kept = PerturbationStore(2, (3,))
    kept.put(torch.arange(2), torch.full((2, 3), 5.0))
    inner = InnerOptions(min_steps=0)
    options: Any = {"bounds": (0.0, 1.0), "stopping": FixedSteps(0), "inner": inner}
    model = nn.Linear(3, 2)
    robust = WRM(model, functional.cross_entropy, 1.0, store=kept, **options)
    worst = robust.perturb(torch.rand(2, 3), torch.tensor([0, 1]), ids=torch.arange(2))
    assert torch.equal(worst.inputs, torch.ones(2, 3))


def test_taking_over_from_other_ranks_removes_only_files_of_the_store(tmp_path: Path) -> None:
    stem = tmp_path / "store.npy"
    for rank in range(2):
        shard = PerturbationStore(NUM // 2, SHAPE, path=tmp_path / f"store-{rank}-of-2.npy")
        shard.put(torch.arange(NUM // 2), rows(rank, NUM // 2))
        shard.commit()
    kept = {"store.npy.bak", "store-mine.npy", "storeroom.npy.gz"}
    for name in kept:
        (tmp_path / name).write_text("mine")
    store = ShardedStore(NUM, SHAPE, path=stem)
    store.load_state_dict({"generations": [1, 1]})
    assert torch.equal(store.get(torch.arange(NUM))[::2], rows(0, NUM // 2))
    store.tidy()
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {*kept, "store.npy", "store.npy.sums", "store.npy.1.journal"}
