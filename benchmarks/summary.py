"""The table of all benchmarks, from the files of numbers that they have written.

    python benchmarks/summary.py [--write [FOLDER]]

With `--render` every page is made again from its file, too, and nothing is measured.
"""

import argparse
import importlib
from pathlib import Path

import pages

# The scripts, in the order of the table, with what they are about.
SCRIPTS = {
    "minimax_calls": "calls to a solution",
    "robust_race": "race to a robust accuracy",
    "robust_steps": "robust training",
    "attacks_race": "attacks",
    "robustness": "robust models",
    "estimators": "estimators",
    "optimizer_steps": "one step",
    "batches": "batches",
    "ranks": "several ranks",
    "startup": "start-up",
}
PAGE = "benchmarks.md"


def benchmarks() -> list[pages.Benchmark]:
    """All of them."""
    return [importlib.import_module(name).BENCHMARK for name in SCRIPTS]


def render(results: Path = pages.RESULTS) -> str:
    """The page."""
    found = benchmarks()
    lines = [
        "# Benchmarks",
        "",
        "Written by `python benchmarks/summary.py --write` from the files in `benchmarks/results`. "
        "One row per number that has a target, and the one to know where there is none; the pages "
        "say what was measured and how, and have all other numbers. `make bench` measures again "
        "what takes minutes; every script makes its page from its file with `--render --write`. "
        "Times are compared with times of the same run. A command is the last column after "
        "`python benchmarks/` and before `--write`.",
        "",
        "| benchmark | what is compared | number | target | | command |",
        "|---|---|---:|---|---|---|",
    ]
    for benchmark in found:
        record = pages.read(results / f"{benchmark.name}.json")
        command = record.command.removeprefix("python benchmarks/").removesuffix(" --write")
        first = [f"[{SCRIPTS[benchmark.name]}]({benchmark.page})", f"`{command}`"]
        for head in benchmark.headlines(record.numbers):
            lines.append(f"| {' | '.join([first[0], *head.cells(), first[1]])} |")
            first = ["", ""]
    whole = [benchmark.page.removesuffix(".md") for benchmark in found if not benchmark.is_part]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *whole, "```", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments = pages.parse(parser)
    if arguments.render:
        for benchmark in benchmarks():
            pages.publish(benchmark, arguments)
    text = render()
    print(text)
    if arguments.write is not None:
        docs = pages.DOCS if arguments.write == pages.ROOT else arguments.write
        (docs / PAGE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
