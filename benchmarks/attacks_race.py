"""The ensemble of attacks against AutoAttack of torchattacks: accuracy and time.

    python benchmarks/attacks_race.py [--images N] [--models NAMES] [--runs DIR] [--quick]
                                      [--write [FOLDER]] [--render]

Both attack the same images of the same networks, one right after the other, on one thread; times
are those of the processor. AutoAttack is "standard" (APGD-CE, targeted APGD-DLR, targeted FAB,
Square with 5000 queries) with 100 steps, where torchattacks has 10. The library's ensemble is
measured as it is by default, and with `patience=None`, which spends all 5000 queries of Square.

torchattacks is not among the dependencies, since it pins old packages:

    pip install --no-deps torchattacks

Trained networks and finished measurements are kept in `--runs` and used again.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pages
import torch
from torch import Tensor, nn

from neada import data
from neada.attacks import robust_accuracy
from neada.training import TrainConfig, open_run, train

EPS = 0.1
LEAST_FASTER, MOST_ABOVE = 3.0, 0.005
MODELS = {
    "digits, not robust": TrainConfig(data="digits", gamma=1e6, epochs=6),
    "digits, WRM": TrainConfig(data="digits", gamma=1.3, epochs=6),
    "MNIST, adversarial": TrainConfig(
        data="mnist",
        objective="adversarial",
        eps=EPS,
        method="gdmax",
        inner_steps=5,
        max_calls=1800,
    ),
}
OURS, ALL_QUERIES, THEIRS = WAYS = ("neada", "neada, all queries", "torchattacks")


@dataclasses.dataclass(frozen=True)
class Measured:
    """What an attack left, and what it cost."""

    num_images: int
    num_clean: int
    num_right: int
    seconds: float


def measure(way: str, model: nn.Module, inputs: Tensor, targets: Tensor, quick: bool) -> Measured:
    """Attack once."""
    start = time.process_time()
    if way == THEIRS:
        points = auto_attack(model, quick)(inputs, targets)
        seconds = time.process_time() - start
        with torch.no_grad():
            num_right = int((model(points).argmax(1) == targets).sum())
    else:
        options: dict[str, Any] = {} if way == OURS else {"patience": None}
        if quick:
            options |= {"num_steps": 3, "num_queries": 5}
        batches = [(inputs, targets)]
        found = robust_accuracy(model, batches, "ensemble", EPS, bounds=(0.0, 1.0), **options)
        seconds = time.process_time() - start
        num_right = round(found.attacked[EPS] * found.num_samples)
    with torch.no_grad():
        num_clean = int((model(inputs).argmax(1) == targets).sum())
    return Measured(len(inputs), num_clean, num_right, seconds)


def auto_attack(model: nn.Module, quick: bool) -> Any:
    """AutoAttack with 100 steps of each of its attacks."""
    import torchattacks

    attack = torchattacks.AutoAttack(model, norm="Linf", eps=EPS, n_classes=10, seed=0)
    for part in attack._autoattack.attacks:
        if hasattr(part, "steps"):
            part.steps = 3 if quick else 100
        if quick and hasattr(part, "n_queries"):
            part.n_queries = 5
    return attack


def trained(name: str, runs: Path | None, quick: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """A network of the list with its test images."""
    config = dataclasses.replace(MODELS[name], eval_samples=1000, eval_eps=(EPS,))
    if quick:
        config = dataclasses.replace(config, epochs=1)
    folder = None if runs is None else runs / f"attacks_race_{slug(name)}"
    found = data.load(config.data)
    if folder is not None and folder.is_dir():
        model = open_run(folder).model
    else:
        model = train(config, folder, data=found).model
    return model.eval(), *found.splits["test"]


def slug(words: str) -> str:
    """A name as part of a file's."""
    return words.lower().replace(",", "").replace(" ", "_")


def results(
    names: list[str], num_images: int, runs: Path | None, quick: bool
) -> dict[str, dict[str, Measured]]:
    """All ways with all networks."""
    ways = [way for way in WAYS if way != THEIRS or has_torchattacks()]
    found: dict[str, dict[str, Measured]] = {}
    for name in names:
        model, inputs, targets = trained(name, runs, quick)
        found[name] = {}
        for way in ways:
            pages.progress(f"{name}: {way}")
            kept = None
            if runs is not None:
                kept = runs / f"attacks_race_{slug(name)}_{slug(way)}_{num_images}.json"
            if kept is not None and kept.exists():
                measured = Measured(**json.loads(kept.read_text(encoding="utf-8")))
            else:
                measured = measure(way, model, inputs[:num_images], targets[:num_images], quick)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(dataclasses.asdict(measured)), encoding="utf-8")
            found[name][way] = measured
    return found


def has_torchattacks() -> bool:
    """Whether there is anything to compare with."""
    return importlib.util.find_spec("torchattacks") is not None


def measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every way left of every network, by their names."""
    names = list(MODELS) if arguments.models is None else arguments.models.split(";")
    if arguments.quick:
        names = names[:1]
    elif "NEADA_DATA" not in os.environ:
        names = [name for name in names if MODELS[name].data != "mnist"]
        print("NEADA_DATA is not set: without MNIST", file=sys.stderr)
    num_images = 20 if arguments.quick else arguments.images
    found = results(names, num_images, arguments.runs, arguments.quick)
    networks = {
        name: {way: dataclasses.asdict(measured) for way, measured in ways.items()}
        for name, ways in found.items()
    }
    return {"quick": arguments.quick, "networks": networks}


def read_networks(numbers: dict[str, Any]) -> dict[str, dict[str, Measured]]:
    """The networks of a record."""
    return {
        name: {way: Measured(**measured) for way, measured in ways.items()}
        for name, ways in numbers["networks"].items()
    }


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """The accuracy above AutoAttack's, and the speed on the last network."""
    compared = [ways for ways in read_networks(numbers).values() if THEIRS in ways]
    if not compared:
        return []
    above = max((w[OURS].num_right - w[THEIRS].num_right) / w[OURS].num_images for w in compared)
    faster = compared[-1][THEIRS].seconds / compared[-1][OURS].seconds
    return [
        pages.Headline(
            "accuracy that the ensemble of attacks leaves above AutoAttack, in points",
            100 * above,
            "at most",
            100 * MOST_ABOVE,
            ".1f",
        ),
        pages.Headline(
            "the ensemble on MNIST, times as fast as AutoAttack", faster, "at least", LEAST_FASTER
        ),
    ]


def render(record: pages.Record) -> str:
    """The tables in Markdown, with what was asked for."""
    lines = [
        "# The ensemble of attacks against AutoAttack",
        "",
        f"{pages.opening(record, 'attacks_race')} Accuracy under attacks of size "
        f"{EPS:g} (linf) in %, seconds of one processor, how many times as fast as AutoAttack of "
        'torchattacks with 100 steps. "All queries": Square does not end early.',
        "",
        "| network | images | attack | clean | attacked | seconds | times as fast |",
        "|---|---|---|---|---|---|---|",
    ]
    found = read_networks(record.numbers)
    for name, ways in found.items():
        for way, measured in ways.items():
            shares = [n / measured.num_images for n in (measured.num_clean, measured.num_right)]
            theirs = ways.get(THEIRS)
            ratio = "-" if theirs is None else f"{theirs.seconds / measured.seconds:.2f}"
            lines.append(
                f"| {name} | {measured.num_images} | {way} | {100 * shares[0]:.1f} | "
                f"{100 * shares[1]:.1f} | {measured.seconds:.1f} | {ratio} |"
            )
    lines.append("")
    if not (heads := headlines(record.numbers)):
        lines.append("torchattacks is not installed, so there is nothing to compare with.")
    else:
        above, faster = heads
        last = [ways for ways in found.values() if THEIRS in ways][-1]
        lines += [
            f"Accuracy above AutoAttack's: at most {above.value:.1f} points, asked for "
            f"{above.limit:g}: **{'met' if above.is_met else 'missed'}**.",
            f"Times as fast on the last network: {faster.value:.2f}, asked for {faster.limit:g} "
            f"on MNIST: **{'met' if faster.is_met else 'missed'}**. With all queries of Square, as "
            f"AutoAttack has them: {last[THEIRS].seconds / last[ALL_QUERIES].seconds:.2f}.",
        ]
    if record.numbers["quick"]:
        lines.append("A quick run: 3 steps, 5 queries; the numbers are not meaningful.")
    return "\n".join(lines) + "\n"


BENCHMARK = pages.Benchmark("attacks_race", "benchmarks-attacks.md", measure_all, render, headlines)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--models", help="some of " + "; ".join(MODELS) + ", with ; between")
    parser.add_argument("--runs", type=Path, help="keep networks and measurements there")
    parser.add_argument("--quick", action="store_true", help="a few images, a few steps")
    arguments = pages.parse(parser)
    if unknown := set((arguments.models or "").split(";")) - {"", *MODELS}:
        parser.error(f"--models: there is no {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
