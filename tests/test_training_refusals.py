"""Misuse of `train` and `TrainConfig`; nothing is written before the error."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neada import training
from neada.training import TrainConfig, train

CONFIG = TrainConfig(data="synthetic", max_calls=20, eval_eps=(0.5,))
CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: TrainConfig(gamma=0.0), ValueError, "gamma"),
    (lambda: TrainConfig(gamma=math.nan), ValueError, "gamma"),
    (lambda: TrainConfig(gamma="a"), ValueError, "gamma"),
    (lambda: TrainConfig(max_calls=1.5), ValueError, "max_calls"),
    (lambda: train(CONFIG, checkpoint_seconds=-1), ValueError, "checkpoint_seconds"),
    (lambda: TrainConfig(objective="wrn"), ValueError, "wrm"),
    (lambda: train(TrainConfig(data="synthetic", device="gpu")), ValueError, "device"),
    (lambda: TrainConfig(strength=2.0), ValueError, "strength"),
    (lambda: TrainConfig(method="free", objective="group"), ValueError, "free"),
    (lambda: train(CONFIG, resume=True), ValueError, "folder"),
    (lambda: train({"data": "digits"}), TypeError, "TrainConfig"),
    (lambda: train(CONFIG, "a\0b"), ValueError, "folder"),
    (lambda: train(CONFIG, ""), ValueError, "folder"),
    (lambda: train(CONFIG, 3), TypeError, "folder"),
    (lambda: training.open_run("nowhere"), ValueError, "nowhere"),
    (lambda: train(CONFIG, resume="no"), ValueError, "resume"),
    (lambda: train(CONFIG, overwrite="no"), ValueError, "overwrite"),
    (lambda: train(CONFIG, tensorboard="no"), ValueError, "tensorboard"),
]  # fmt: skip


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_misuse(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function, kind, word = CALLS[call]
    with pytest.raises(kind, match=word):
        function()
    assert os.listdir(tmp_path) == []
