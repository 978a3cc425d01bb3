"""What each attack and the certificate say about the models of `neada train`: a table of the docs.

    python benchmarks/robustness.py [--runs FOLDER] [--quick] [--write FILE]

Trains models on scikit-learn's digits, and on MNIST where the environment variable NEADA_DATA says
where it is, and attacks their test images. With `--runs` the trained models are kept in a folder
and not trained again. `--write` puts the table into a page, between its two marks.
"""

import argparse
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from neada import attacks, robust
from neada.training import TrainConfig, open_run, train

BEGIN, END = "<!-- robustness table -->", "<!-- end of the table -->"
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


def row(name: str, folder: Path, quick: bool) -> str:
    """Train a model, or read it, and ask every attack and the certificate about it."""
    options = {"data": "digits", **MODELS[name]}
    data = options["data"]
    length = {"max_calls": 40} if quick else {"epochs": EPOCHS[data]}
    config = TrainConfig(**options, **length, eval_eps=(EPS,))
    place = folder / name.replace(", ", "-")
    say(f"{name}: training")
    train(config, place, resume=True)
    run = open_run(place)
    num_samples = 20 if quick else SAMPLES[data]
    inputs, targets = run.data.inputs_test[:num_samples], run.data.targets_test[:num_samples]
    cells, warned = [], False
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
                progress=lambda part, words: say(f"{name}: {words} {100 * part:.0f} %"),
                **more,
            )
        warned = warned or any("gradient" in str(warning.message) for warning in caught)
        cells.append(f"{100 * found.attacked[EPS]:.1f}")
    few = inputs[:CERTIFIED], targets[:CERTIFIED]
    with torch.no_grad():
        loss = cross_entropy(run.model(few[0]), few[1]).item()
    bound = certificate(run.model, few, run.data.bounds)
    cells = [
        name + (" (warned)" if warned else ""),
        f"{100 * found.clean:.1f}",
        *cells,
        f"{loss:.3g}",
        "none" if bound is None else f"{bound.value:.3g}, {bound.kind}",
    ]
    return f"| {' | '.join(cells)} |"


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


def table(names: list[str], folder: Path, quick: bool) -> str:
    lines = [
        f"Written by `benchmarks/robustness.py`; torch {torch.__version__}. Accuracy in % on "
        f"{SAMPLES['digits']} test images of digits and {SAMPLES['mnist']} of MNIST, Linf, eps = "
        f"{EPS:g}, clipped to the range of the data; {EPOCHS['digits']} epochs of digits and "
        f"{EPOCHS['mnist']} of MNIST, one seed. The last columns are the mean loss of "
        f"{CERTIFIED} of them, and what bounds it when they are moved by a mean squared distance "
        f"of {RHO:g}.",
        "",
        "| model | clean | FGSM | PGD-40 | ensemble | mean loss | bound |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(row(name, folder, quick) for name in names)])


def say(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{words:<70}", end="", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="keep the trained models here")
    parser.add_argument(
        "--quick", action="store_true", help="a little of each, to see that it runs"
    )
    parser.add_argument("--write", type=Path, help="put the table into this page")
    arguments = parser.parse_args()
    has_mnist = "NEADA_DATA" in os.environ and not arguments.quick
    names = [name for name in MODELS if has_mnist or not name.startswith("mnist")]
    with tempfile.TemporaryDirectory() as temporary:
        text = table(names, arguments.runs or Path(temporary), arguments.quick)
    print(text)
    if arguments.write is not None:
        page = arguments.write.read_text()
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        arguments.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
