"""How long a process takes until it is useful, against a process that only imports torch.

    python benchmarks/startup.py [--rounds N] [--write FILE]

Every command is a process of its own. In each round all of them run one right after the other, and
what is reported is the median over rounds of the ratio of CPU times within a round.
"""

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

import torch

README = Path(__file__).parents[1] / "README.md"
TEN_LINES = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)[0]
BASELINE = "import torch"
HELP = "from neada.cli import main; main({arguments})"
# What is run, and the largest ratio that is good enough.
COMMANDS: dict[str, tuple[str, float | None]] = {
    BASELINE: ("import torch", None),
    "README's ten lines": (TEN_LINES, 1.2),
    "neada --help": (HELP.format(arguments="['--help']"), 0.3),
    "neada train --help": (HELP.format(arguments="['train', '--help']"), 0.3),
    "import neada": ("import neada", None),
}


def cpu_seconds(code: str) -> float:
    """The CPU time of a process that runs some code, its start included."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def page(rounds: int) -> str:
    """Run everything, and say how it went as a page of the documentation."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for code, _ in COMMANDS.values():
        cpu_seconds(code)  # byte code and the disk's cache
    for _ in range(rounds):
        for name, (code, _) in COMMANDS.items():
            seconds[name].append(cpu_seconds(code))
    lines = [
        "# Benchmarks: start-up",
        "",
        "Written by `benchmarks/startup.py`. CPU time of whole processes: the median over "
        f"{rounds} rounds of (the process) / (a process that only imports torch, in the same "
        f"round). A target that is missed is in bold. {platform.machine()}, torch "
        f"{torch.__version__}, Python {platform.python_version()}.",
        "",
        "| process | CPU seconds | of `import torch` | target |",
        "|---|---|---|---|",
    ]
    missed = 0
    for name, (_, target) in COMMANDS.items():
        ratio = statistics.median(
            own / base for own, base in zip(seconds[name], seconds[BASELINE], strict=True)
        )
        is_bad = target is not None and ratio > target
        missed += is_bad
        shown = f"**{ratio:.2f}**" if is_bad else f"{ratio:.2f}"
        wanted = "" if target is None else f"at most {target:g}"
        lines.append(f"| {name} | {statistics.median(seconds[name]):.2f} | {shown} | {wanted} |")
    return "\n".join([*lines, "", f"Targets missed in this run: {missed}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds to take the median over")
    parser.add_argument("--write", type=Path, help="also write the page to this file")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    text = page(arguments.rounds)
    print(text)
    if arguments.write is not None:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
