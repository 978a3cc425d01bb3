"""How long a process takes until it is useful, against a process that only imports torch.

    python benchmarks/startup.py [--rounds N] [--write [FOLDER]] [--render]

Every command is a process of its own. In each round all of them run one right after the other, and
what is reported is the median over rounds of the ratio of CPU times within a round.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pages

README = Path(__file__).parents[1] / "README.md"
TEN_LINES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)[
    0
]
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


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of every process."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for code, _ in COMMANDS.values():
        cpu_seconds(code)  # byte code and the disk's cache
    for _ in range(arguments.rounds):
        for name, (code, _) in COMMANDS.items():
            seconds[name].append(cpu_seconds(code))
    rows = [
        {
            "name": name,
            "seconds": statistics.median(spent),
            "ratio": statistics.median(
                own / base for own, base in zip(spent, seconds[BASELINE], strict=True)
            ),
        }
        for name, spent in seconds.items()
    ]
    return {"rounds": arguments.rounds, "rows": rows}


def render(record: pages.Record) -> str:
    """The page."""
    lines = [
        "# Benchmarks: start-up",
        "",
        f"{pages.opening(record, 'startup')} CPU time of whole processes: the median over "
        f"{record.numbers['rounds']} rounds of (the process) / (a process that only imports torch, "
        "in the same round). A target that is missed is in bold.",
        "",
        "| process | CPU seconds | of `import torch` | target |",
        "|---|---|---|---|",
    ]
    missed = 0
    for row in record.numbers["rows"]:
        target = COMMANDS[row["name"]][1]
        is_bad = target is not None and row["ratio"] > target
        missed += is_bad
        shown = f"**{row['ratio']:.2f}**" if is_bad else f"{row['ratio']:.2f}"
        wanted = "" if target is None else f"at most {target:g}"
        lines.append(f"| {row['name']} | {row['seconds']:.2f} | {shown} | {wanted} |")
    return "\n".join([*lines, "", f"Targets missed in this run: {missed}.", ""])


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """Every process that has a target."""
    return [
        pages.Headline(
            f"CPU time of {row['name']} / of `import torch`", row["ratio"], "at most", target
        )
        for row in numbers["rows"]
        if (target := COMMANDS[row["name"]][1]) is not None
    ]


BENCHMARK = pages.Benchmark("startup", "benchmarks-startup.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds to take the median over")
    arguments = pages.parse(parser)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
