"""Run code on two ranks; a launch whose loopback connection is refused is repeated once."""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Work = Callable[[int, Path], dict[str, Any]]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def is_gloo_failure(message: str) -> bool:
    """Whether Gloo could not connect the ranks, or aborted when a finished rank exited.

    Neither depends on this library: the second happens because torch's own `fully_shard` keeps the
    threads of Gloo beyond `destroy_process_group`.
    """
    is_refused = "connectFullMesh" in message and "Connection refused" in message
    return is_refused or "terminate called without an active exception" in message


def _rank(rank: int, work: Work, folder: Path) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(minutes=10)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timeout
    )
    found = work(rank, folder)
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def on_two_ranks(work: Work, folder: Path) -> list[dict[str, Any]]:
    """What `work(rank, folder)` returns on each of two ranks; `folder` is that of this attempt."""
    for attempt in ("first", "second"):
        place = folder / attempt
        place.mkdir()
        try:
            mp.spawn(_rank, (work, place), nprocs=2)
            break
        except mp.ProcessRaisedException as error:
            if attempt == "second" or not is_gloo_failure(str(error)):
                raise
    return [json.loads((place / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


def run_python(arguments: Sequence[str], cwd: Path | None = None) -> str:
    """The standard output of a Python process that starts two ranks."""
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not is_gloo_failure(result.stderr) or result.returncode == 0:
            break
    assert result.returncode == 0, result.stderr
    return result.stdout
