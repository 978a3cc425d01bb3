"""What each attack and the certificate say about the models of `neada train`: a table of the docs.

    python benchmarks/robustness.py [--runs FOLDER] [--quick] [--write [FOLDER]] [--render]

Trains models on scikit-learn's digits, and on MNIST where the environment variable NEADA_DATA says
where it is, and attacks their test images. With `--runs` the trained models are kept in a folder
and not trained again. The table stands between two marks of `docs/robustness.md`.
"""

import argparse
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pages
import torch
from torch.nn.functional import cross_entropy

from neada import attacks, robust
from neada.training import TrainConfig, open_run, train

EPS, RHO = 0.1, 0.01
EPOCHS = {"digits": 40, "mnist": 1}
SAMPLES = {"digits": 360, "mnist": 200}
CERTIFIED = 50  # images; the curvature of a convolutional network takes long
# Without the adversary's part TRADES is plain training.
MODELS: dict[str, dict[str, Any]] = {
    "digits, plain": {"objective": "trades", "beta": 0.0},
    "digits, WRM": {"gamma": 3.0},
    "digits, adversarial": {"objective": "adversarial", "eps": EPS},
    "digits, TRADES": {"objective": "trades", "eps": EPS},
    "digits, linear, WRM": {"model": "linear", "gamma": 3.0},
    "mnist, WRM": {"data": "mnist", "gamma": 1.3},
    "mnist, adversarial": {"data": "mnist", "objective": "adversarial", "eps": EPS},
    "mnist, linear, WRM": {"data": "mnist", "model": "linear", "gamma": 1.3},
}
ATTACKS: dict[str, dict[str, int]] = {
    "fgsm": {},
    "pgd": {"num_steps": 40},
    "ensemble": {},
}


def row(name: str, folder: Path, quick: bool) -> dict[str, Any]:
    """Train a model, or read it, and ask every attack and the certificate about it."""
    options = {"data": "digits", **MODELS[name]}
    data = options["data"]
    length = {"max_calls": 40} if quick else {"epochs": EPOCHS[data]}
    config = TrainConfig(**options, **length, eval_eps=(EPS,))
    place = folder / name.replace(", ", "-")
    pages.progress(f"{name}: training")
    train(config, place, resume=True)
    run = open_run(place)
    num_samples = 20 if quick else SAMPLES[data]
    inputs, targets = run.data.inputs_test[:num_samples], run.data.targets_test[:num_samples]
    accuracies, warned = {}, False
    for attack, own in ATTACKS.items():
        more = {"num_queries": 20, "num_steps": 3} if quick and attack == "ensemble" else own
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = attacks.robust_accuracy(
                run.model,
                [(inputs, targets)],
                attack,
                EPS,
                bounds=run.data.bounds,
                progress=lambda part, words: pages.progress(f"{name}: {words} {100 * part:.0f} %"),
                **more,
            )
        warned = warned or any("gradient" in str(warning.message) for warning in caught)
        accuracies[attack] = found.attacked[EPS]
    few = inputs[:CERTIFIED], targets[:CERTIFIED]
    with torch.no_grad():
        loss = cross_entropy(run.model(few[0]), few[1]).item()
    bound = certificate(run.model, few, run.data.bounds)
    return {
        "name": name,
        "warned": warned,
        "clean": found.clean,
        **accuracies,
        "loss": loss,
        "bound": None if bound is None else bound.value,
        "kind": None if bound is None else bound.kind,
    }


def certificate(
    model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], bounds: Any
) -> robust.Certificate | None:
    """The smallest bound over some prices, each of which is valid.

    The first price is just large enough, the next ones each time twice as large, as long as that
    helps. None if there is none.
    """
    try:
        robust.certificate(robust.WRM(model, cross_entropy, 1e-9, bounds=bounds), [batch], rho=RHO)
    except ValueError as error:
        found = re.search(r"one above ([0-9.e+-]+)", str(error))
        if found is None:
            raise
    else:
        return None
    best: robust.Certificate | None = None
    gamma = 1.05 * float(found[1])
    while True:
        objective = robust.WRM(model, cross_entropy, gamma, bounds=bounds)
        bound = robust.certificate(objective, [batch], rho=RHO)
        if best is not None and bound.value >= best.value:
            return best
        best, gamma = bound, 2.0 * gamma


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """A row for every model."""
    has_mnist = "NEADA_DATA" in os.environ and not arguments.quick
    names = [name for name in MODELS if has_mnist or not name.startswith("mnist")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.runs or Path(temporary)
        return {"rows": [row(name, folder, arguments.quick) for name in names]}


def render(record: pages.Record) -> str:
    """The table, and what is in it."""
    lines = [
        f"{pages.opening(record, 'robustness')} Accuracy in % on "
        f"{SAMPLES['digits']} test images of digits and {SAMPLES['mnist']} of MNIST, Linf, eps = "
        f"{EPS:g}, clipped to the range of the data; {EPOCHS['digits']} epochs of digits and "
        f"{EPOCHS['mnist']} of MNIST, one seed. The last columns are the mean loss of "
        f"{CERTIFIED} of them, and what bounds it when they are moved by a mean squared distance "
        f"of {RHO:g}.",
        "",
        "| model | clean | FGSM | PGD-40 | ensemble | mean loss | bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in record.numbers["rows"]:
        cells = [
            found["name"] + (" (warned)" if found["warned"] else ""),
            *(f"{100 * found[way]:.1f}" for way in ("clean", *ATTACKS)),
            f"{found['loss']:.3g}",
            "none" if found["bound"] is None else f"{found['bound']:.3g}, {found['kind']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """What training for robustness gains under the strongest attack."""
    rows = {row["name"]: row for row in numbers["rows"]}
    gain = rows["digits, adversarial"]["ensemble"] - rows["digits, plain"]["ensemble"]
    what = "accuracy of digits under the ensemble that adversarial training gains, in points"
    return [pages.Headline(what, 100 * gain, form=".1f")]


BENCHMARK = pages.Benchmark("robustness", "robustness.md", measure, render, headlines, is_part=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="keep the trained models here")
    parser.add_argument(
        "--quick", action="store_true", help="a little of each, to see that it runs"
    )
    pages.publish(BENCHMARK, pages.parse(parser))


if __name__ == "__main__":
    main()
