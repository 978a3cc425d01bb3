"""Whatever is damaged in a run folder: resume ends as if it were whole, or changes nothing."""

import dataclasses
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neada import tables
from neada.cli.main import main
from neada.data import Dataset
from neada.runs import Checkpoints
from neada.training import Progress, TrainConfig, TrainStatus, open_run, train

CONFIG = TrainConfig(
    warm_start="disk", epochs=5, max_calls=10_000, batch_size=8, log_every=10, eval_eps=(0.1,)
)
KINDS = ("finished", "interrupted")


class KilledError(Exception):
    """In place of a signal."""


def data() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(30, 4, generator=generator)
    targets = (2 * inputs[:, 0]).long()
    return Dataset("own", *(inputs[:20], targets[:20], inputs[20:], targets[20:]), num_classes=2)


def model() -> nn.Module:
    torch.default_generator.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def resumed(folder: Path) -> tuple[list[dict[str, Any]], list[float]]:
    result = train(CONFIG, folder, resume=True, model=model(), data=data())
    assert result.status is TrainStatus.FINISHED
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]
    return rows, torch.cat([p.detach().flatten() for p in result.model.parameters()]).tolist()


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def interrupt(at: Progress) -> None:
    if at.x_steps == 11:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("damage")
    found = {kind: place / kind for kind in KINDS}
    train(CONFIG, found["finished"], model=model(), data=data(), checkpoint_seconds=1e-9)
    options: Any = {"progress": interrupt, "checkpoint_seconds": 1e-9}
    stopped = train(CONFIG, found["interrupted"], model=model(), data=data(), **options)
    assert stopped.status is TrainStatus.INTERRUPTED
    return found


@pytest.fixture(scope="module")
def whole(folders: dict[str, Path]) -> tuple[list[dict[str, Any]], list[float]]:
    before = files_in(folders["finished"])
    found = resumed(folders["finished"])
    assert files_in(folders["finished"]) == before  # verified, and not sealed again
    return found


def harms(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    yield "missing", None
    yield "empty", b""
    yield "cut", content[: 2 * len(content) // 3]
    yield "grown", content + b"7\n"
    yield "zeros", bytes(len(content))
    for part in range(5):
        flipped = bytearray(content)
        place = (2 * part + 1) * len(content) // 10
        flipped[place] ^= 1
        yield f"bit at {place}", bytes(flipped)
    digits = [i for i in range(len(content)) if chr(content[i]).isdigit()]
    for place in digits[:: max(1, len(digits) // 4)]:
        changed = bytearray(content)
        changed[place] = ord("3") if changed[place] != ord("3") else ord("4")
        yield f"digit at {place}", bytes(changed)


NAMES = (
    *("config.json", "environment.json", "metrics.jsonl", "result.json"),
    *("checkpoint 0", "checkpoint 1", "journal 0", "journal 1"),
    *("perturbations.npy", "perturbations.npy.sums"),
)


def named(folder: Path, name: str) -> Path:
    kind, _, number = name.partition(" ")
    if not number:
        return folder / name
    return sorted(folder.glob({"checkpoint": "checkpoint-*", "journal": "*.journal"}[kind]))[
        int(number)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_resume_ends_the_same_or_changes_nothing(
    folders: dict[str, Path], whole: Any, tmp_path: Path, kind: str, name: str
) -> None:
    if kind == "interrupted" and name == "result.json":
        pytest.skip("there is none yet")
    content = named(folders[kind], name).read_bytes()
    outcomes = {}
    for harm, damaged in harms(content):
        folder = tmp_path / "run"
        shutil.copytree(folders[kind], folder)
        path = named(folder, name)
        path.unlink() if damaged is None else path.write_bytes(damaged)
        before = files_in(folder)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = resumed(folder)
        except ValueError as error:
            assert "\n" not in str(error)
            assert files_in(folder) == before, harm
            outcomes[harm] = "refused"
        else:
            assert found == whole, harm
            outcomes[harm] = "fell back" if said else "the same"
        shutil.rmtree(folder)
    harmless = {"finished": set(), "interrupted": {"grown"}}[kind]
    for harm, outcome in outcomes.items():
        if name.startswith("checkpoint"):
            # Of a run that goes on from the newest, the one before is not looked at.
            expected = "fell back" if name.endswith("1") and harm != "missing" else "the same"
        elif name == "journal 1":
            expected = "fell back"
        elif name == "result.json" and harm == "missing":
            expected = "the same"  # as if it had been killed before it was sealed
        elif name == "metrics.jsonl" and harm in harmless:
            expected = "the same"  # rows of after the checkpoint are cut
        else:
            expected = "refused"
        assert outcome == expected, (name, harm)


def test_attack_refuses_another_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--data", "synthetic", "--max-calls", "25", "--quiet"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    config = tmp_path / "config.json"
    text = config.read_text(encoding="utf-8")
    assert main(["attack", str(tmp_path), "--eps", "0.1"]) == 0
    for before, after in (('"gamma": 1.3', '"gamma": 1.4'), ('"max_calls": 25', '"max_calls": 26')):
        config.write_text(text.replace(before, after), encoding="utf-8")
        assert config.read_text(encoding="utf-8") != text
        for asked in (["attack"], ["certify"], ["train", "--resume", "--quiet", "--out"]):
            capsys.readouterr()
            assert main([*asked, str(tmp_path)]) == 2
            error = capsys.readouterr().err
            assert "config.json is not what the run wrote" in error and error.count("\n") == 1


def test_a_run_without_its_checkpoints_is_not_begun_again(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["interrupted"], folder)
    for path in folder.glob("checkpoint-*"):
        path.unlink()
    before = files_in(folder)
    with pytest.raises(ValueError, match=r"has metrics.jsonl but no checkpoint"):
        resumed(folder)
    assert files_in(folder) == before


def test_a_kill_after_falling_back_leaves_a_run_that_goes_on(
    folders: dict[str, Path], whole: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["interrupted"], folder)
    named(folder, "journal 1").write_bytes(b"damaged")

    def kill(at: Progress) -> None:
        raise KilledError

    with pytest.warns(UserWarning, match="cannot be used"), pytest.raises(KilledError):
        train(CONFIG, folder, resume=True, model=model(), data=data(), progress=kill)
    assert resumed(folder) == whole


def test_something_else_in_the_place_of_a_file_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    for name in (*NAMES, "result.json", ".metrics.jsonl.0123abcd.neada-tmp"):
        folder = tmp_path / "run"
        shutil.copytree(folders["finished"], folder)
        path = folder / name if name.startswith(".") else named(folder, name)
        path.unlink(missing_ok=True)
        path.mkdir()
        before = set(folder.iterdir())
        for way in ("resume", "overwrite"):
            options: Any = {way: True}
            with pytest.raises(ValueError, match="in the place of a file"):
                train(CONFIG, folder, model=model(), data=data(), **options)
        assert set(folder.iterdir()) == before
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "perturbations.npy", "result.json"])
def test_no_other_file_is_written_through_a_link(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    for target in (other, tmp_path / "missing"):
        shutil.copytree(folders["finished"], folder)
        other.write_text("somebody's", encoding="utf-8")
        (folder / name).unlink()
        (folder / name).symlink_to(target)
        for way in ("resume", "overwrite"):
            options: Any = {way: True}
            with pytest.raises(ValueError, match="in the place of a file"):
                train(CONFIG, folder, model=model(), data=data(), **options)
        assert (
            other.read_text(encoding="utf-8") == "somebody's"
            and not (tmp_path / "missing").exists()
        )
        shutil.rmtree(folder)


def test_a_run_goes_on_with_its_own_data_only(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["interrupted"], folder)
    before = files_in(folder)
    own = data()
    other = dataclasses.replace(own, inputs_train=own.inputs_train + 0.01)
    with pytest.raises(ValueError, match="the data are not those"):
        train(CONFIG, folder, resume=True, model=model(), data=other)
    assert files_in(folder) == before
    with pytest.warns(UserWarning, match="the data are not those"):
        open_run(folder, model=model(), data=other)


def test_samples_stop_one_by_one_with_every_named_optimizer(tmp_path: Path) -> None:
    for name in tables.OPTIMIZERS:
        config = dataclasses.replace(CONFIG, y_optimizer=name, per_sample=True, max_calls=30)
        result = train(config, tmp_path / name, model=model(), data=data())
        assert result.status is TrainStatus.FINISHED


def test_a_store_that_cannot_be_is_refused_before_the_old_run_is_gone(tmp_path: Path) -> None:
    train(CONFIG, tmp_path, model=model(), data=data())
    before = files_in(tmp_path)
    own = data()
    half = {name: getattr(own, name).bfloat16() for name in ("inputs_train", "inputs_test")}
    narrow = dataclasses.replace(own, **half)
    with pytest.raises(ValueError, match="dtype must be"):
        train(CONFIG, tmp_path, overwrite=True, model=model().bfloat16(), data=narrow)
    assert files_in(tmp_path) == before


class Interrupting(nn.Sequential):
    """Sends a signal with the first evaluation."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(inputs)


def test_a_signal_in_the_last_evaluation_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    asked: Any = {"max_calls": 60, "epochs": None, "eval_every": 10_000, "eval_samples": 5}
    config = dataclasses.replace(CONFIG, **asked)
    options: Any = {"data": data(), "checkpoint_seconds": 1e-9}
    whole = train(config, tmp_path / "whole", model=model(), **options)
    layers = Interrupting(*model())
    stopped = train(config, tmp_path / "run", model=layers, **options)
    assert stopped.status is TrainStatus.INTERRUPTED
    assert stopped.message == "interrupted; resume=True goes on from the last checkpoint"
    ended = train(config, tmp_path / "run", model=model(), resume=True, **options)
    assert [row["calls"] for row in ended.rows] == [row["calls"] for row in whole.rows]
    for found, expected in zip(ended.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, expected)


# Checkpoints with a right checksum and odd contents.


def leaves(state: Any, *keys: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(state, dict | list) and len(state):
        for key in state if isinstance(state, dict) else range(len(state)):
            yield (*keys, key)
            yield from leaves(state[key], *keys, key)


def odd(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        yield torch.zeros(3, 5, 7)
        yield value.to(torch.int16)
    yield [[]]
    yield "odd"
    yield -(10**30)


def changed(state: Any, keys: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    copy: Any = dict(state) if isinstance(state, dict) else list(state)
    if len(keys) == 1:
        change(copy, keys[0])
    else:
        copy[keys[0]] = changed(copy[keys[0]], keys[1:], change)
    return copy


@pytest.mark.parametrize(
    "asked", [{}, {"objective": "group", "warm_start": "none"}, {"method": "tiada"}]
)
def test_a_checkpoint_with_odd_contents_is_one_sentence(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    config = dataclasses.replace(CONFIG, **asked, eval_every=10_000)
    origin, folder = tmp_path / "origin", tmp_path / "run"
    train(config, origin, model=model(), data=data(), progress=interrupt)
    state = Checkpoints(origin).load()
    assert state is not None
    places, num_refused = list(leaves(state)), 0
    assert len(places) > 80
    for number, keys in enumerate(places[len(asked) % 2 :: 2]):
        value = state
        for key in keys:
            value = value[key]
        kinds: list[Any] = [*odd(value), None, "remove"]
        kind = kinds[number % len(kinds)]

        def change(container: Any, key: Any, kind: Any = kind) -> None:
            if kind == "remove":
                del container[key]
            else:
                container[key] = kind

        shutil.copytree(origin, folder)
        Checkpoints(folder).save(changed(state, keys, change))
        before = files_in(folder)
        try:
            train(config, folder, resume=True, model=model(), data=data())
        except ValueError as error:
            num_refused += 1
            assert "\n" not in str(error) and len(str(error)) < 1000
            # What an inner loop takes up with its first batch is looked at only then.
            is_late = {"inner", "y", "y_optimizer"} & set(keys)
            assert is_late or files_in(folder) == before, (keys, kind)
        shutil.rmtree(folder)
    assert num_refused > len(places) // 4
    Checkpoints(origin).save({"odd": 1})
    with pytest.raises(
        ValueError, match=r"checkpoint-.* does not fit the run \(there is no 'model"
    ):
        open_run(origin, model=model(), data=data())
