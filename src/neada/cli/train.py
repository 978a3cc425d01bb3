"""`neada train`."""

import dataclasses
import functools
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import neada
from neada.cli.output import absolute_path, complain, plain_warnings, print_json
from neada.training.config import DATA, TrainConfig

if TYPE_CHECKING:
    from neada.training import TrainResult

__all__ = ["accuracy_table", "train", "with_saved_config"]


def train(
    config: TrainConfig,
    *,
    out: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    download: bool = False,
    checkpoint_seconds: float = 60.0,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Train a network that is robust to perturbations of its inputs.

    Args:
        config: The configuration, which the run folder records.
        out: The run folder; None: a folder under runs/train.
        resume: Resume the run in the folder. The saved configuration provides the defaults.
        overwrite: Replace the run in the folder.
        tensorboard: Also write the metrics for TensorBoard.
        download: Allow downloading missing data.
        checkpoint_seconds: The time between checkpoints.
        json: Print JSON.
        quiet: Show no progress.
    """
    if resume and (overwrite or out is None):
        raise ValueError("--resume requires --out with the folder of a run, without --overwrite")
    config = _with_absolute_paths(config)
    default = Path("runs", "train", re.sub(r"[^\w.]+", "-", config.label))
    folder = absolute_path("--out", str(default) if out is None else out)
    if _is_restart(folder):
        resume, overwrite = True, False
    if resume and not neada.runs.RunFolder(folder).exists():
        complain(f"{folder} has no run to resume: starting a new one")
    with plain_warnings():
        result = neada.training.train(
            config,
            folder,
            resume=resume,
            overwrite=overwrite,
            progress=not (quiet or json),
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            download=download,
        )
    status = neada.training.TrainStatus
    _show(config, result, json)
    if result.status is not status.FINISHED:
        complain(result.message)
    return {status.FINISHED: 0, status.NON_FINITE: 1}.get(result.status, 130)


def with_saved_config(arguments: list[str]) -> Callable[..., int]:
    """Return `train`, with the defaults of the run that the arguments resume, if any."""
    import tyro

    def run_folder(out: str = "", resume: bool = False) -> Path | None:
        return Path(os.path.expanduser(out)) if out and resume else None

    folder, _ = tyro.cli(run_folder, args=arguments, return_unknown_args=True, add_help=False)
    if folder is None or not (folder / "config.json").exists():
        return train
    saved = TrainConfig.from_dict(neada.runs.RunFolder(folder).config())
    return functools.partial(train, config=saved)


def _with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """Make paths absolute, so that the run can be opened from any folder."""
    data, folder = config.data, config.data_folder
    return dataclasses.replace(
        config,
        data=data if data in DATA else str(absolute_path("--data", data)),
        data_folder=None if folder is None else str(absolute_path("--data-folder", folder)),
    )


def _is_restart(folder: Path) -> bool:
    """Whether `torchrun` restarts the command that started the run in this folder."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return False
    try:
        saved = neada.runs.RunFolder(folder).environment().get("launch")
    except (OSError, ValueError):
        return False
    return saved is not None and saved == neada.runs.launched_by()


def _show(config: TrainConfig, result: "TrainResult", json: bool) -> None:
    if json:
        print_json(
            {
                "status": result.status.name,
                "message": result.message,
                "calls": result.calls,
                "x_steps": result.x_steps,
                "seconds": round(result.seconds, 3),
                "accuracies": result.accuracies,
                "folder": str(result.folder),
                "config": dataclasses.asdict(config),
            }
        )
        return
    if result.accuracies:
        print(accuracy_table(config.attack, result.accuracies), end="\n\n")
    print(
        f"{Path(config.data).stem} by {config.method_label}: {result.x_steps} steps of the model, "
        f"{result.calls} gradient evaluations, {result.seconds:.0f} s"
    )
    print(f"run: {result.folder}")
    folder, status = shlex.quote(str(result.folder)), neada.training.TrainStatus
    if result.status is status.FINISHED:
        print(f"next: neada attack {folder}")
    elif result.status is not status.NON_FINITE:
        print(f"next: neada train --out {folder} --resume")


def accuracy_table(attack: str, accuracies: dict[str, float]) -> str:
    """Format accuracies in percent, one line per part of the data.

    Example:
        >>> print(accuracy_table("fgsm", {"test_clean": 0.981, "test_0.05": 0.9}))
        accuracy  clean  fgsm 0.05
        test       98.1       90.0
    """
    rows: dict[str, dict[str, float]] = {}
    for name, share in accuracies.items():
        part = "held_out" if name.startswith("held_out") else "test"
        column = name.removeprefix(f"{part}_").replace("_", " ")
        title = f"{attack} {column}" if column[0].isdigit() else column
        rows.setdefault(part.replace("_", "-"), {})[title] = share
    lines = ["  ".join(["accuracy", *next(iter(rows.values()))])]
    for part, shares in rows.items():
        cells = [f"{100.0 * share:{max(len(title), 5)}.1f}" for title, share in shares.items()]
        lines.append("  ".join([f"{part:8}", *cells]))
    return "\n".join(lines)
