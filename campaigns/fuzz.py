"""Hostile files, most of them in this process, some through the command line.

Allowed is success, or a ValueError or OSError of one short sentence, in bounded time and memory; no
pickle runs, and no markup of a file becomes a part of a report.
"""

import contextlib
import functools
import hashlib
import html.parser
import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import neada
import neada.report
from campaigns import hostile, reproductions, trainings
from campaigns.batches import Trial, in_batches
from campaigns.trainings import called, command
from campaigns.trials import Tally, one_sentence, words

__all__ = ["run"]

_NUM = {
    "idx": (60, 45_000),
    "mnist": (10, 2_000),
    "npz": (40, 25_000),
    "config": (30, 12_000),
    "metrics": (30, 9_000),
    "checkpoint": (30, 5_000),
    "reproduction": (20, 2_500),
    "command line": (10, 600),
}
"""Files of the short and of the full form."""
_BATCH = 500
_MNIST = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_WAYS = ("plain", "disk store", "memory store", "group", "tiada", "adversarial")


def run(tally: Tally, length: str, seed: int, scratch: Path) -> None:
    """Count the trials of this kind."""
    data = trainings.make_data(scratch)
    for way in _WAYS:
        line = trainings.arguments(way, data, scratch / "runs" / way, max_calls=20)
        command(line).wait()
    command(reproductions.arguments(scratch / "reproduction")).wait(120)
    for name, numbers in _NUM.items():
        make = globals()[f"_{name.replace(' ', '_')}"]
        trials = [
            _trial(name, make, f"{seed} {name} {number}", scratch)
            for number in range(numbers[length == "full"])
        ]
        in_batches(tally, trials, _BATCH)


def _trial(
    name: str, make: Callable[[random.Random, Path], str], source: str, scratch: Path
) -> Trial:
    def act() -> str:
        canary = scratch / "canary"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trouble = make(random.Random(source), scratch)
            except (ValueError, OSError) as error:
                trouble = one_sentence(str(error))
        if canary.exists():
            canary.unlink()
            trouble = "a pickle ran"
        return trouble

    return Trial(f"{name} of random.Random({source!r})", act)


def _idx(draw: random.Random, scratch: Path) -> str:
    path = scratch / draw.choice(("file", "file.gz"))
    path.write_bytes(hostile.idx(draw))
    array = neada.data.readers.read_idx(path)
    return "" if array.size == len(array.tobytes()) // array.itemsize else "another size"


def _mnist(draw: random.Random, scratch: Path) -> str:
    neada.data.load("mnist", folder=_mnist_folder(draw, scratch))
    return ""


def _mnist_folder(draw: random.Random, scratch: Path) -> Path:
    folder = scratch / "mnist"
    folder.mkdir(exist_ok=True)
    images = bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(24)
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 6]) + bytes(range(6))
    for name in _MNIST:
        (folder / f"{name}-ubyte").write_bytes(images if "images" in name else labels)
    (folder / f"{draw.choice(_MNIST)}-ubyte").write_bytes(hostile.idx(draw))
    return folder


def _npz(draw: random.Random, scratch: Path) -> str:
    found = neada.data.load(_npz_file(draw, scratch))
    return "" if bool(found.inputs_train.isfinite().all()) else "inputs that are not finite"


def _npz_file(draw: random.Random, scratch: Path) -> Path:
    path = scratch / "own.npz"
    path.write_bytes(hostile.npz(draw, scratch / "canary"))
    return path


def _config(draw: random.Random, scratch: Path) -> str:
    neada.training.open_run(_folder_with_config(draw, scratch))
    return ""


def _folder_with_config(draw: random.Random, scratch: Path) -> Path:
    folder = _copy(scratch / "runs" / "plain", scratch / "configured")
    valid = json.loads((scratch / "runs" / "plain" / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_bytes(hostile.json_text(valid, draw))
    return folder


def _copy(source: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    return copy


def _metrics(draw: random.Random, scratch: Path) -> str:
    folder = scratch / "measured"
    if not folder.exists():
        shutil.copytree(scratch / "runs" / "plain", folder)
    lines = (scratch / "runs" / "plain" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    content = b"\n".join(
        hostile.json_text(json.loads(line), draw) if draw.random() < 0.3 else line.encode()
        for line in lines
    )
    run = neada.runs.Run(folder)
    run.metrics_file.write_bytes(content)
    config = run.config()
    if not run.trouble(config):
        return "metrics that are others are taken for whole"
    run.rows()
    return ""


class _EnoughError(Exception):
    """The checkpoint was loaded and a step was taken."""


def _checkpoint(draw: random.Random, scratch: Path) -> str:
    folder = _folder_with_checkpoint(draw, scratch)
    if draw.random() < 0.3:
        neada.training.open_run(folder)
        return ""

    def enough(progress: Any) -> None:
        raise _EnoughError

    config = neada.training.TrainConfig.from_dict(neada.runs.Run(folder).config())
    with contextlib.suppress(_EnoughError):
        neada.training.train(config, folder, resume=True, progress=enough)
    return ""


@functools.cache
def _valid_state(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(min(run.glob("checkpoint-*.pt")), weights_only=True)
    return state


def _folder_with_checkpoint(draw: random.Random, scratch: Path) -> Path:
    """A run whose only checkpoint has odd content, and the right checksum in its name."""
    run = scratch / "runs" / draw.choice(_WAYS)
    folder = _copy(run, scratch / "saved")
    for path in folder.glob("checkpoint-*.pt"):
        path.unlink()
    content = hostile.state(_valid_state(run), draw, scratch / "canary")
    checksum = hashlib.sha256(content).hexdigest()[:16]
    (folder / f"checkpoint-00000001-{checksum}.pt").write_bytes(content)
    return folder


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "probe-x" or any(name.startswith("onprobe") for name, _ in attrs):
            self.found = f"<{tag}> with {[name for name, _ in attrs]} in the report"


def _reproduction(draw: random.Random, scratch: Path) -> str:
    folder = _folder_with_request(draw, scratch)
    neada.report.write(folder)
    page = _Page()
    page.feed((folder / "report.html").read_text(encoding="utf-8"))
    return page.found


def _folder_with_request(draw: random.Random, scratch: Path) -> Path:
    source = scratch / "reproduction"
    folder = _copy(source, scratch / "requested")
    files = [folder / "reproduction.json"] * 4 + sorted(folder.rglob("*.json"))
    path = draw.choice(files)
    path.write_bytes(hostile.json_text(json.loads(path.read_text(encoding="utf-8")), draw))
    return folder


def _command_line(draw: random.Random, scratch: Path) -> str:
    lines: list[Callable[[], list[str]]] = [
        lambda: ["data", "mnist", "--data-folder", str(_mnist_folder(draw, scratch))],
        lambda: ["data", str(_npz_file(draw, scratch))],
        lambda: ["attack", str(_folder_with_config(draw, scratch)), "--attack", "fgsm"],
        lambda: ["train", "--resume", "--out", str(_folder_with_config(draw, scratch))],
        lambda: ["train", "--resume", "--out", str(_folder_with_checkpoint(draw, scratch))],
        lambda: ["attack", str(_folder_with_checkpoint(draw, scratch)), "--attack", "fgsm"],
        lambda: ["report", str(_folder_with_request(draw, scratch))],
    ]
    line = draw.choice(lines)()
    ended = called([*line, "--json"])
    if ended.code not in (0, 2):
        return f"{line[0]}: exit code {ended.code}: {ended.errors[-300:]!a}"
    return words(ended, needed=ended.code == 2)
