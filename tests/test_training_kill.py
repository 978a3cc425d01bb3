"""Killed with SIGKILL at ten random moments and resumed, a run ends as if nothing had happened."""

import json
import os
import subprocess
import sys
from pathlib import Path

# Its own process, so that it can fork children that have torch loaded: a kill then costs the time
# that the child was given, and no more.
SCRIPT = """
import dataclasses, json, os, random, signal, sys, time
from pathlib import Path
import torch
from torch import nn
from neada import data
from neada.runs import Checkpoints
from neada.training import TrainConfig, train

folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])
random_moment = random.Random(0)
config = TrainConfig(
    data="synthetic", warm_start="disk", lr_x=0.01, lr_y=0.05, batch_size=64, eval_eps=(0.5,),
    stop="released", log_every=5, eval_every=100, eval_samples=200, max_calls=800,
)
points = data.load("synthetic")
# What torch imports with the first step, once and not in every child.
train(dataclasses.replace(config, max_calls=4, warm_start="none"), data=points)

def play(name):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.default_generator.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ELU(), nn.Dropout(0.2), nn.Linear(16, 2)
        )
        train(config, folder / name, resume=True, model=model, data=points,
              checkpoint_seconds=0.03)
        code = 0
    finally:
        os._exit(code)

started = time.perf_counter()
assert os.waitstatus_to_exitcode(os.waitpid(play("whole"), 0)[1]) == 0
duration = time.perf_counter() - started
ends, checkpoints = [], []
while ends.count(-signal.SIGKILL) < num_kills:
    child = play("killed")
    # Half of the whole on average: the tenth is killed too where the load of the machine varies.
    time.sleep(random_moment.uniform(0.0, duration / num_kills))
    os.kill(child, signal.SIGKILL)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    checkpoints.append(len(Checkpoints(folder / "killed").paths()))
    if ends[-1] == 0:
        break
ends.append(os.waitstatus_to_exitcode(os.waitpid(play("killed"), 0)[1]))
checkpoints.append(len(Checkpoints(folder / "killed").paths()))
print(json.dumps({"ends": ends, "checkpoints": checkpoints, "duration": duration}))
"""


def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "10"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    # Ten were killed, the last one went on to the end; some of them had something to go on from.
    assert report["ends"] == [-9] * 10 + [0], (report, done.stderr)
    # A kill between the new checkpoint and the removal of the oldest leaves three; the end, two.
    assert 2 <= max(report["checkpoints"]) <= 3, report
    assert report["checkpoints"][-1] == 2, report
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    rows = [_rows(folder) for folder in (whole, killed)]
    assert len(rows[0]) > 50
    assert rows[0] == rows[1]
    states = [_final_state(folder) for folder in (whole, killed)]
    assert states[0] == states[1]
    # And nothing is left lying about.
    assert not list(killed.glob(".checkpoint-*"))


def _rows(folder: Path) -> list[dict[str, object]]:
    rows = [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows]


def _final_state(folder: Path) -> dict[str, bytes]:
    import torch

    newest = sorted(folder.glob("checkpoint-*.pt"))[-1]
    state = torch.load(newest, weights_only=True)
    assert state["complete"]
    tensors = {f"model.{name}": tensor for name, tensor in state["model"].items()}
    for number, memory in state["game"]["x_optimizer"]["state"].items():
        tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in memory.items()}
    (rng,) = state["rng"]  # of the only rank
    tensors |= {f"rng.{name}": tensor for name, tensor in rng.items()}
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
