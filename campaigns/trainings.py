"""Small training runs to do harm to: some dozen gradient calls each, in every way of training."""

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neada
from campaigns.disk import Disk, Mode
from campaigns.trials import Child, Ended
from neada import cli

__all__ = [
    "WAYS",
    "arguments",
    "called",
    "command",
    "make_data",
    "outcome",
    "result_of",
    "snapshot",
    "warm",
]

WAYS: dict[str, list[str]] = {
    "plain": [],
    "disk store": ["--warm-start", "disk"],
    "memory store": ["--warm-start", "memory", "--y-optimizer", "adam"],
    "batch norm": ["--model", "small-cnn", "--warm-start", "disk"],
    "tensorboard": ["--tensorboard"],
    "group": ["--objective", "group"],
    "tiada": ["--method", "tiada", "--warm-start", "disk"],
    "free": ["--method", "free", "--x-optimizer", "sgd"],
    "adversarial": ["--objective", "adversarial", "--random-start", "--x-optimizer", "dowg"],
    "trades": ["--objective", "trades", "--x-optimizer", "adagrad"],
}
"""Flags of `neada train`, by what they are about."""
if importlib.util.find_spec("tensorboard") is None:
    del WAYS["tensorboard"]

LOCKS = (".neada-lock",)
"""Names that a writer leaves in a folder and that are no part of the run."""


def make_data(folder: Path) -> Path:
    """A file with 50 small images of two classes."""
    draw = np.random.default_rng(0)
    targets = np.arange(50) % 2
    inputs = draw.normal(size=(50, 1, 4, 4)) + targets[:, None, None, None]
    path = folder / "data.npz"
    np.savez(path, inputs=inputs.astype(np.float32), targets=targets)
    return path


def arguments(way: str, data: Path, out: Path, *, max_calls: int = 40) -> list[str]:
    """The command line of a training run."""
    return [
        *("train", "--data", str(data), "--model", "mlp", "--batch-size", "16"),
        *("--max-calls", str(max_calls), "--eval-eps", "0.1", "--eval-every", "20"),
        *("--log-every", "5", "--checkpoint-seconds", "1e-9", "--quiet", "--out", str(out)),
        *WAYS[way],
    ]


def command(
    line: list[str], folder: Path | None = None, mode: Mode = "count", at: int = 1
) -> Child:
    """Start a command in a child.

    Args:
        line: Its arguments.
        folder: Where a `Disk` stands between the child and its files; its number of operations is
            the last line that the child writes. None for none.
        mode: Of the disk.
        at: Of the disk.
    """

    def run() -> int:
        if folder is None:
            return cli.main(line)
        disk = Disk(folder, mode, at)
        disk.install()
        code = cli.main(line)
        print(disk.num_operations)
        return code

    return Child(run)


def called(line: list[str]) -> Ended:
    """Run a command in this process, for short trials."""
    output, errors = io.StringIO(), io.StringIO()
    code = 70
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = cli.main(line)
        except (Exception, SystemExit):
            traceback.print_exc()
    return Ended(code, output.getvalue(), errors.getvalue())


def warm(data: Path) -> None:
    """Import what commands import, once and not in every child."""
    torch.set_num_threads(1)
    for name in ("train", "attack", "reproduce"):
        importlib.import_module(f"neada.cli.{name}")
    config = neada.training.TrainConfig(
        data=str(data), max_calls=4, batch_size=16, model="small-cnn", attack="pgd"
    )
    neada.training.train(config)


def outcome(folder: Path) -> str:
    """A digest of what a run came to: its rows and its last state, times aside."""
    rows = [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    for row in rows:
        row.pop("seconds", None)
    newest = max(folder.glob("checkpoint-*.pt"))
    state = torch.load(newest, weights_only=True)
    kept = {name: state[name] for name in ("model", "game", "batches", "rng", "meter", "complete")}
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode())
    _feed(digest.update, kept)
    return digest.hexdigest()


def _feed(update: Callable[[bytes], object], content: Any) -> None:
    if isinstance(content, torch.Tensor):
        update(str((content.dtype, tuple(content.shape))).encode())
        update(content.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(content, dict):
        for key in sorted(content, key=str):
            if key != "store":  # on disk it is at a commit whose number counts checkpoints
                update(str(key).encode())
                _feed(update, content[key])
    elif isinstance(content, list | tuple):
        for entry in content:
            _feed(update, entry)
    else:
        update(repr(content).encode())


def result_of(folder: Path, ended: Ended) -> str:
    """The digest of a run that should be complete now, or what is wrong."""
    if ended.code != 0:
        return f"exit code {ended.code}: {ended.errors[-300:]!a}"
    try:
        return outcome(folder)
    except Exception as error:
        return f"the run cannot be read: {type(error).__name__}: {error}"


def snapshot(folder: Path) -> dict[str, str]:
    """Every name below a folder with a digest of its content, locks aside."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name not in LOCKS:
            if path.is_symlink():
                content = f"link to {path.readlink()}"
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                content = "folder"
            found[str(path.relative_to(folder))] = content
    return found
