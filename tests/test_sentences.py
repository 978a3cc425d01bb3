"""The numbers in the prose of the documentation are those in the files that commands have written.

`SENTENCES` has words of a page with fields in them, and how the numbers of the fields follow from
the files: `docs/reproduction.json` (claims, and cells of tables) and those in `benchmarks/results`.
"""

import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@functools.cache
def read(path: str) -> Any:
    return json.loads((ROOT / path).read_text())


def reproduced() -> Any:
    return read("docs/reproduction.json")


def zoo(name: str) -> int:
    """The calls of the default on a problem."""
    calls: int = read("benchmarks/results/minimax_calls.json")["numbers"]["calls"]["neada"][name]
    return calls


def claims(experiment: str, begin: str = "") -> dict[str, Any]:
    """The claims of an experiment whose names begin so."""
    found = reproduced()[experiment]["numbers"]["claims"]
    return {key: claim for key, claim in found.items() if key.startswith(f"{experiment}/{begin}")}


def claim(key: str) -> Any:
    return claims(key.split("/")[0])[key]


def measured(key: str) -> float:
    return float(claim(key)["measured"])


def all_measured(experiment: str, *begins: str) -> list[float]:
    return [float(c["measured"]) for begin in begins for c in claims(experiment, begin).values()]


def in_note(key: str, pattern: str) -> tuple[str, ...]:
    found = re.search(pattern, claim(key)["note"])
    assert found is not None, (key, pattern)
    return found.groups()


def holding(experiment: str, begin: str = "") -> tuple[int, int]:
    found = claims(experiment, begin).values()
    return sum(c["verdict"] == "holds" for c in found), len(found)


def power(value: float) -> str:
    """One digit and the exponent, without a zero before it."""
    return re.sub(r"e([+-])0?", r"e\1", f"{value:.0e}").replace("e+", "e")


def cell(experiment: str, **fields: Any) -> Any:
    (found,) = (
        c
        for c in reproduced()[experiment]["numbers"]["cells"]
        if all(c[key] == value for key, value in fields.items())
    )
    return found


def grid(name: str, lr_x: float) -> dict[Any, float]:
    """Mean robust accuracies of a method of `no-learning-rate` by lr_y."""
    found = reproduced()["no-learning-rate"]["numbers"]["cells"]
    return {c["lr_y"]: c["test_0.1"][0] for c in found if c["name"] == name and c["lr_x"] == lr_x}


def best_lead(name: str, lr_x: float, default_lr_x: float) -> float:
    return max(grid(name, lr_x).values()) - grid("default", default_lr_x)[None]


def largest_cost_of_lr_y(name: str, rates: tuple[float, ...]) -> float:
    return max(
        max(found.values()) - min(found.values()) for found in (grid(name, r) for r in rates)
    )


PAPER, MINIMAX = "docs/reproduction.md", "docs/minimax.md"
EPS = ("0.02", "0.05", "0.1")
NO_LR = "no-learning-rate"
ADAM_X, TIADA_X = (1e-4, 1e-3, 1e-2, 1e-1), (1e-2, 1e-1, 1.0, 10.0)
Numbers = Callable[[], tuple[Any, ...]]
# The page, words of it with fields, and the numbers of the fields.
SENTENCES: list[tuple[str, str, Numbers]] = [
    (MINIMAX, "and with 2000 it is solved after {}.", lambda: (zoo("nc_sc_quadratic_kappa100"),)),
    # In one paragraph.
    (PAPER, "in {} of {} comparisons; the learning rate", lambda: holding(NO_LR, "not-worse")),
    # Figure 1.
    (PAPER, "All {1} claims hold, for the inner loop", lambda: holding("quadratic")),
    (PAPER, "and AdaGrad {:.0f}-fold,", lambda: (measured("quadratic/adaptive-diverge"),)),
    (
        PAPER,
        "the gradient moves by {} in 8000 calls, without it by {} (`lemma`)",
        lambda: (
            power(measured("quadratic/adaptive-constant")),
            power(measured("lemma/adam-constant")),
        ),
    ),
    (
        PAPER,
        "Every nested method ends below {} % of its start",
        lambda: (math.ceil(100 * max(all_measured("quadratic", "released", "text"))),),
    ),
    # Figure 2.
    (PAPER, "all {1} claims hold for 10 of 10 noise", lambda: holding("mccormick", "paper")),
    *(
        (
            PAPER,
            "Adam and AMSGrad converge from {:.0f} of 10 at ratio 0.01, from {:.0f} at 0.03 and "
            "only from {:.0f} at 0.05",
            lambda method=method: tuple(
                10 * measured(f"mccormick/random/{method}-{rate}") for rate in (0.01, 0.03, 0.05)
            ),
        )
        for method in ("adam", "amsgrad")
    ),
    (
        PAPER,
        "NeAda-AMSGrad ({:.0f} of 10 at 0.01) and NeAda-AdaGrad ({:.0f}, {:.0f} and {:.0f} of 10)",
        lambda: tuple(
            10 * measured(f"mccormick/random/neada-{case}")
            for case in ("amsgrad-0.01", "adagrad-0.01", "adagrad-0.03", "adagrad-0.05")
        ),
    ),
    # Figure 3.
    (PAPER, "Adam falls by {:.1f} points", lambda: (measured("synthetic-dro/drop-adam-15"),)),
    (
        PAPER,
        "NeAda is ahead for {} of {} seeds, by {:.1f} points on average",
        lambda: (
            *in_note("synthetic-dro/higher-0.01", r"positive for (\d) of (\d) seeds"),
            measured("synthetic-dro/higher-0.01"),
        ),
    ),
    (
        PAPER,
        "although Adam's training loss is {:.0f} times lower",
        lambda: (1.0 / measured("synthetic-dro/lower-loss"),),
    ),
    (
        PAPER,
        "**fails**: it is ahead for {} of {} seeds",
        lambda: in_note("synthetic-dro/higher-0.08", r"positive for (\d) of (\d) seeds"),
    ),
    (
        PAPER,
        "is then hardly robust ({:.1f} and {:.1f} %)",
        lambda: tuple(
            cell("synthetic-dro", method="neada", lr_y=lr_y)["test_0.5"][1] for lr_y in (0.08, 0.01)
        ),
    ),
    # Lemma 1.
    *(
        (
            PAPER,
            "r = {:.2f} L^{:.2f} for " + words,
            lambda method=method: tuple(
                map(float, in_note(f"lemma/{method}-border", r"r = ([\d.]+) L\^([\d.]+)"))
            ),
        )
        for method, words in (("adam", "Adam, AMSGrad and AdaGrad"), ("gda", "GDA;"))
    ),
    (
        PAPER,
        "the gradient stays to {}, and GDA follows its closed form to {}.",
        lambda: (
            power(max(measured(f"lemma/{m}-constant") for m in ("adam", "adagrad", "gda"))),
            power(measured("lemma/gda-closed-form")),
        ),
    ),
    # Theorem 2.
    (
        PAPER,
        "{:.2f} for backtracking, {:.2f} to {:.2f} for the forms of AdGD, {:.2f} for L-BFGS",
        lambda: (
            measured("deterministic-rate/backtracking"),
            min(all_measured("deterministic-rate", "adgd")),
            max(all_measured("deterministic-rate", "adgd")),
            measured("deterministic-rate/l-bfgs"),
        ),
    ),
    (
        PAPER,
        "give p between {:.2f} and {:.2f} and errors within a factor of {:.1f}",
        lambda: (
            min(all_measured("deterministic-rate", "lr-0", "lr-1")),
            max(all_measured("deterministic-rate", "lr-0", "lr-1")),
            measured("deterministic-rate/lr-spread"),
        ),
    ),
    (
        PAPER,
        "p = {:.1f} after 30 000 calls",
        lambda: (measured("deterministic-rate/small-lr-flat-tail"),),
    ),
    # Theorem 3.
    (
        PAPER,
        "p = {:.1f} for the theorem's own setting (M = eps^-2, T = 4 eps^-2; theory 4), {:.1f} "
        "with growing batches",
        lambda: (measured("stochastic-rate/theorem"), measured("stochastic-rate/sgd")),
    ),
    (
        PAPER,
        "and DoG are all at or below {:.1f} ",
        lambda: (max(all_measured("stochastic-rate", "sgd-log", "coin", "averaged", "dog")),),
    ),
    (PAPER, "(slope {:.3f})", lambda: (measured("stochastic-rate/fixed-steps"),)),
    (
        PAPER,
        "(measured {:.3f} and {:.3f} for 1/2 and 3/4)",
        lambda: (measured("stochastic-rate/alpha-1/2"), measured("stochastic-rate/alpha-3/4")),
    ),
    # Theorem 4.
    (
        PAPER,
        "Exponents {:.3f}, {:.3f} and {:.3f} for alpha",
        lambda: tuple(measured(f"regret/exponent-{a}") for a in (0.25, 0.5, 0.75)),
    ),
    (PAPER, "grows by {:.2f} per unit of log T", lambda: (measured("regret/logarithm"),)),
    (PAPER, "It never exceeds {:.2f} of the bound", lambda: (measured("regret/bound"),)),
    (
        PAPER,
        "the regret grows like T^{:.2f} and is {:.0f} times the bound",
        lambda: (measured("regret/small-lr-0.02"), measured("regret/below-threshold")),
    ),
    # Theorem 5.
    (
        PAPER,
        "over 1000 seeds rises by {:.0f} % with Gaussian noise",
        lambda: (100 * float(in_note("high-probability/heavy-spread", r"against ([\d.]+)")[0]),),
    ),
    (
        PAPER,
        "grows like log(1/delta)^{:.1f}.",
        lambda: (float(in_note("high-probability/excess-growth", r"^([\d.]+),")[0]),),
    ),
    (
        PAPER,
        "outside the assumption, the rise is {:.0f} %",
        lambda: (100 * float(in_note("high-probability/heavy-spread", r"^([\d.]+) ")[0]),),
    ),
    # Which learning rates work.
    (
        PAPER,
        "solves {:.0f} % of the problems",
        lambda: (float(in_note("agnostic/default", r"neada ([\d.]+) %")[0]),),
    ),
    (
        PAPER,
        "works on {:.0f} % of the grid, with AdGD inside on {:.0f} %",
        lambda: tuple(
            float(in_note("agnostic/best-neada", rf"{name} ([\d.]+) %")[0])
            for name in ("neada-adagrad", "neada-adgd")
        ),
    ),
    (
        PAPER,
        "(Adam {1} % to {0} %, AMSGrad {3} % to {2} %, GDA {5} % to {4} %, AdaGrad {7} % to {6} %)",
        lambda: tuple(
            share
            for name in ("neada-adam", "neada-amsgrad", "neada-gda", "neada-adagrad-coordinate")
            for share in in_note(f"agnostic/{name}", r"([\d.]+) %, \w+ ([\d.]+) %")
        ),
    ),
    # Figure 4.
    (
        PAPER,
        "ahead at every epsilon, by {:.1f}, {:.1f} and {:.1f} points, for all three seeds",
        lambda: [measured(f"mnist-dro/higher-0.01-{eps}") for eps in EPS],
    ),
    (
        PAPER,
        "NeAda is ahead at 0.02 ({:.1f} points) and at 0.05 ({:.1f}), and the claim **fails** at "
        "0.1 ({:.1f} points",
        lambda: [measured(f"mnist-dro/higher-0.001-{eps}") for eps in EPS],
    ),
    (
        PAPER,
        "**fails** at every epsilon, by {:.1f}, {:.1f} and {:.1f} points",
        lambda: [-measured(f"mnist-dro/default-{eps}") for eps in EPS],
    ),
    (
        PAPER,
        "gains {:.1f} points at epsilon = 0.1 with equal rates and loses {:.1f} with",
        lambda: (measured("mnist-dro/frozen-0.001"), -measured("mnist-dro/frozen-0.01")),
    ),
    # No learning rate of the adversary.
    (PAPER, "{} of {} hold. - **lr_y can go.**", lambda: holding(NO_LR)),
    (
        PAPER,
        "**fails**: {} points in the mean, but from {} to {} over the seeds",
        lambda: in_note(
            f"{NO_LR}/not-worse-tiada-0.1", r"([-+.\d]+) in the mean, from ([-+.\d]+) to ([-+.\d]+)"
        ),
    ),
    (
        PAPER,
        "the best one of Adam-15 is {:.1f} points ahead at lr_x = 0.01 and {:.1f} at 0.1, and "
        "TiAda with lr_y = 1 is {:.1f} and {:.1f} ahead",
        lambda: (
            best_lead("adam-15", 0.01, 0.01),
            best_lead("adam-15", 0.1, 0.1),
            best_lead("tiada", 1.0, 0.01),
            best_lead("tiada", 10.0, 0.1),
        ),
    ),
    (
        PAPER,
        "up to {:.0f} points for Adam-15, {:.0f} for NeAda-Adam, {:.0f} for TiAda",
        lambda: (
            largest_cost_of_lr_y("adam-15", ADAM_X),
            largest_cost_of_lr_y("neada-adam", ADAM_X),
            largest_cost_of_lr_y("tiada", TIADA_X),
        ),
    ),
    (
        PAPER,
        "{1:.0f} points from the best to the worst, against {0:.0f} for Adam-15, {2:.0f} for "
        "NeAda-Adam and {3:.0f} for TiAda",
        lambda: tuple(
            float(number)
            for name, pattern in (
                ("adam-15", r"([\d.]+) points against ([\d.]+)"),
                ("neada-adam", r"([\d.]+) points against"),
                ("tiada", r"([\d.]+) points against"),
            )
            for number in in_note(f"{NO_LR}/not-wider-{name}", pattern)
        ),
    ),
    (
        PAPER,
        "The default takes {} to {} steps of x there from the same calls, Adam-15 {:.0f},",
        lambda: (
            *cell(NO_LR, name="default", lr_x=1e-4)["x_steps"][1:],
            cell(NO_LR, name="adam-15", lr_x=1e-4, lr_y=0.01)["x_steps"][0],
        ),
    ),
    (
        PAPER,
        "DoWG is {2} points behind Adam with its best lr_x ({1} to {0} by seed)",
        lambda: (
            in_note(f"{NO_LR}/lr-x-can-go-dowg", r"from -([\d.]+) to -([\d.]+)")
            + in_note(f"{NO_LR}/lr-x-can-go-dowg", r"-([\d.]+) in the mean")
        ),
    ),
    (
        PAPER,
        "DoG is {} behind the best",
        lambda: in_note(f"{NO_LR}/lr-x-can-go-dog", r"-([\d.]+) in the mean"),
    ),
    # Errata.
    (
        PAPER,
        "the regret grows linearly, {:.0f} times the bound",
        lambda: (measured("errata/regret-rate/half-worst"),),
    ),
    (
        PAPER,
        "the regret is then {:.1f} times the printed bound",
        lambda: (measured("errata/regret-constant/violated"),),
    ),
    (
        PAPER,
        "the first costs {:.1f} times the inner steps for a {:.0f} times smaller error of y",
        lambda: (
            measured("errata/criterion-text/steps"),
            measured("errata/criterion-text/accuracy"),
        ),
    ),
]


@pytest.mark.parametrize(
    ("page", "words", "numbers"), SENTENCES, ids=[words[:40] for _, words, _ in SENTENCES]
)
def test_a_sentence_has_the_numbers_of_the_files(page: str, words: str, numbers: Numbers) -> None:
    text = " ".join((ROOT / page).read_text().split())
    sentence = words.format(*numbers())
    assert sentence in text, f"{page} should say: {sentence}"
