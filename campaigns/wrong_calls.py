"""Wrong calls, from the table in `wrong_calls.txt`: each must get its sentence."""

import functools
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import neada
import neada.report
from campaigns import trainings
from campaigns.batches import Trial, in_batches
from campaigns.trials import Tally, one_sentence, words
from neada import attacks, optim, robust, sets, steppers, stopping
from neada.inner import InnerOptions

__all__ = ["names", "read_table", "run"]

_TABLE = Path(__file__).with_name("wrong_calls.txt")
_ALLOWED = (ValueError, TypeError, OSError, ImportError, RuntimeError)


class CommandError(ValueError):
    """A command ended with exit code 2; the text is what it wrote."""


def read_table() -> list[tuple[str, str]]:
    """Every call with a part of the sentence that it must get."""
    lines = [
        line
        for line in _TABLE.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    return [(call, part) for call, _, part in (line.partition(" => ") for line in lines)]


def names(scratch: Path) -> dict[str, Any]:
    """What the calls of the table may use."""
    data = trainings.make_data(scratch)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    finished = scratch / "finished"
    trainings.called(trainings.arguments("plain", data, finished, max_calls=10))

    def command(*arguments: object) -> None:
        ended = trainings.called([str(argument) for argument in arguments])
        if ended.code == 2 and not words(ended, needed=True):
            raise CommandError(ended.errors.strip())
        raise AssertionError(f"exit code {ended.code}: {ended.errors[-200:]}")

    return {
        **{"neada": neada, "np": np, "torch": torch, "nn": nn, "math": math, "Path": Path},
        **{"attacks": attacks, "optim": optim, "robust": robust, "sets": sets},
        **{"steppers": steppers, "stopping": stopping, "InnerOptions": InnerOptions},
        **{"data": data, "run": finished, "scratch": scratch, "command": command},
        **{"minimax": neada.minimax, "train": neada.training.train},
        "TrainConfig": neada.training.TrainConfig,
        "f": lambda x, y: (x * y).sum() - 0.5 * (y * y).sum() + 0.5 * (x * x).sum(),
        "loss": nn.functional.cross_entropy,
        "model": model,
        "inputs": torch.rand(6, 4, generator=generator),
        "targets": torch.arange(6) % 3,
        "x": torch.zeros(2, requires_grad=True),
        "y": torch.zeros(2, requires_grad=True),
        "nan": math.nan,
        "inf": math.inf,
        "x_optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }


def run(tally: Tally, length: str, seed: int, scratch: Path) -> None:
    """Count the trials of this kind; the table is short, so that all of it is tried always."""
    known = names(scratch)
    known["scratch"].joinpath("here").mkdir()
    trials = [
        Trial(call, functools.partial(_judge, call, part, known)) for call, part in read_table()
    ]
    in_batches(tally, trials, len(trials))


def _judge(call: str, part: str, known: dict[str, Any]) -> str:
    os.chdir(known["scratch"] / "here")  # where a call that is accepted may write
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eval(call, dict(known))
    except _ALLOWED as error:
        text = str(error)
        if part not in text:
            return f"{type(error).__name__} says {text[:200]!a}, not {part!r}"
        return one_sentence(text)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]!a}"
    return "it was accepted"
