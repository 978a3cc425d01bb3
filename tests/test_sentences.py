"""The numbers in the prose of the documentation are those in the files that commands have written.

`SENTENCES` has words of a page with fields in them, and how the numbers of the fields follow from
the files: `docs/reproduction.json` (claims, and cells of tables), those in `benchmarks/results` and
those in `examples/gallery/results`. A number that looks measured and is in no sentence is an error,
unless `SETTINGS` has it.
"""

import ast
import functools
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@functools.cache
def read(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def reproduced() -> Any:
    return read("docs/reproduction.json")


def zoo() -> dict[str, int]:
    """The calls of the default by problem."""
    calls: dict[str, int] = read("benchmarks/results/minimax_calls.json")["numbers"]["calls"][
        "neada"
    ]
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


def figure_4(method: str, lr_y: float | None, key: str, calls: int = 1565, **fields: Any) -> float:
    """A mean of Figure 4, with the statistics of the batch unless a field says otherwise."""
    name = "mnist-dro" if calls == 1565 else f"mnist-dro-{calls}"
    batch_norm = fields.get("batch_norm", "frozen" if method == "default" else "batch")
    found = cell(name, method=method, lr_y=lr_y, batch_norm=batch_norm)
    return float(found[key][0])


def lead(lr_y: float, eps: str) -> float:
    """By how much NeAda is ahead of Adam-15 after 7820 calls."""
    first, second = (figure_4(m, lr_y, f"held_out_{eps}", calls=7820) for m in ("neada", "gdmax"))
    return first - second


def drop(method: str, eps: str) -> float:
    """What equal rates lose against lr_y = 0.01 after 7820 calls."""
    first, second = (
        figure_4(method, lr_y, f"held_out_{eps}", calls=7820) for lr_y in (0.01, 0.001)
    )
    return first - second


def inner_steps(calls: int) -> float:
    """The mean number of NeAda with equal rates; a step of x is a call, and so is one of y."""
    return calls / figure_4("neada", 0.001, "x_steps", calls=calls) - 1.0


def means_over_lr_y() -> list[float]:
    """By how much the default is ahead of each other method at each lr_x."""
    found = claims(NO_LR, "not-worse").values()
    return [float(re.findall(r"([-+.\d]+) in the mean", c["note"])[0]) for c in found]


def gallery(name: str) -> Any:
    return read(f"examples/gallery/results/{name}.json")


def steps_mean(key: str, **fields: Any) -> float:
    """A mean over the seeds of the recipe with fifteen steps."""
    return statistics.fmean(
        run[key]
        for run in gallery("02_from_fifteen_steps")
        if all(run[name] == value for name, value in fields.items())
    )


def good_samples(method: str) -> float:
    """In %, at the end, of the recipe with a GAN."""
    return 100 * statistics.fmean(run["good"][-1] for run in gallery("03_wgan_gp")[method])


def worst_groups(method: str, passes: int) -> list[float]:
    """In %, one for each seed; they are measured after every second pass."""
    runs = gallery("07_group_dro")[method]
    return [100 * min(run[passes // 2 - 1]) for run in runs]


def worst_group(method: str, passes: int = 10) -> float:
    return statistics.fmean(worst_groups(method, passes))


def gain(passes: int) -> list[float]:
    """By how much group DRO with a strength of 0.1 is ahead of balanced sampling, by seed."""
    pairs = zip(worst_groups("0.1", passes), worst_groups("balanced", passes), strict=True)
    return [first - second for first, second in pairs]


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


PAPER, MINIMAX, FAQ = "docs/reproduction.md", "docs/minimax.md", "docs/faq.md"
FIFTEEN, GAN, GROUPS = (
    f"examples/gallery/{name}.py"
    for name in ("02_from_fifteen_steps", "03_wgan_gp", "07_group_dro")
)
DRO = ("DRO, no regularizer", "0.03", "0.1", "0.3", "1.0")
EPS = ("0.02", "0.05", "0.1")
NO_LR = "no-learning-rate"
ADAM_X, TIADA_X = (1e-4, 1e-3, 1e-2, 1e-1), (1e-2, 1e-1, 1.0, 10.0)
Numbers = Callable[[], tuple[Any, ...]]
# The page, words of it with fields, and the numbers of the fields.
SENTENCES: list[tuple[str, str, Numbers]] = [
    (MINIMAX, "and with 2000 it is solved after {}.", lambda: (zoo()["nc_sc_quadratic_kappa100"],)),
    (
        FAQ,
        "takes between {} and {} for the problems of the zoo",
        lambda: (min(zoo().values()), max(zoo().values())),
    ),
    # In one paragraph.
    (PAPER, "in {} of {} comparisons; the learning rate", lambda: holding(NO_LR, "not-worse")),
    # Figure 1.
    (PAPER, "All {1} claims hold, for the inner loop", lambda: holding("quadratic")),
    (
        PAPER,
        "grow at least {:.0f}-fold at r = 1,",
        lambda: (measured("quadratic/adaptive-diverge"),),
    ),
    (
        PAPER,
        "*rises again*, to {} of its start. AMSGrad ends at {},",
        lambda: tuple(
            in_note(f"quadratic/text/neada-{method}", r"r=8: (\S+)")[0]
            for method in ("adam", "amsgrad")
        ),
    ),
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
    (
        PAPER,
        "A constant answer has {:.1f} %",
        lambda: (float(claim("synthetic-dro/reasonable-adam")["expected"]),),
    ),
    (
        PAPER,
        "Adam with equal rates is at {:.1f} %",
        lambda: (measured("synthetic-dro/adam-at-68"),),
    ),
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
        "with p between {:.1f} and {:.1f} for every linearly convergent inner solver",
        lambda: tuple(
            end(
                float(number)
                for c in claims("deterministic-rate").values()
                for number in re.findall(r"(?:tail|curved) ([\d.]+)", c["note"])
            )
            for end in (min, max)
        ),
    ),
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
        "works on {} % of the grid, with AdGD inside on {} %; the best method without nesting, "
        "TiAda, on {} %, Adam on {} %.",
        lambda: in_note(
            "agnostic/best-neada",
            r"neada-adagrad (\S+) %, neada-adgd (\S+) %, tiada (\S+) %, adam (\S+) %",
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
        "0.1 ({:.1f} points, from {:.1f} to {:.1f} over the seeds)",
        lambda: [
            *(measured(f"mnist-dro/higher-0.001-{eps}") for eps in EPS),
            *cell("mnist-dro", method="neada", batch_norm="batch", lr_y=0.001)["held_out_0.1"][1:],
        ],
    ),
    (
        PAPER,
        "over the first fifth of the calls is {:.2f} of Adam's: it takes {:.1f} times as many",
        lambda: (
            measured("mnist-dro/loss-first-0.01"),
            figure_4("neada", 0.01, "x_steps") / figure_4("gdmax", 0.01, "x_steps"),
        ),
    ),
    (PAPER, "NeAda took {:.1f} inner steps per step of x here", lambda: (inner_steps(1565),)),
    (
        PAPER,
        "**The default adversary** has {:.1f} % at 0.1, between Adam-15 with lr_y = 0.01 "
        "({:.1f} %) and NeAda with it ({:.1f} %)",
        lambda: (
            figure_4("default", None, "held_out_0.1"),
            figure_4("gdmax", 0.01, "held_out_0.1"),
            figure_4("neada", 0.01, "held_out_0.1"),
        ),
    ),
    (
        PAPER,
        "from the same calls ({:.0f} against NeAda's {:.0f})",
        lambda: (figure_4("default", None, "x_steps"), figure_4("neada", 0.01, "x_steps")),
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
    # Figure 4, five times as long.
    (
        PAPER,
        "NeAda is now ahead at every epsilon, by {:.1f}, {:.1f} and {:.1f} points.",
        lambda: [lead(0.001, eps) for eps in EPS],
    ),
    (PAPER, "with time: {:.1f} inner steps per step of x", lambda: (inner_steps(7820),)),
    (
        PAPER,
        "({:.1f} % in the mean of three seeds, then {:.1f} %)",
        lambda: [figure_4("gdmax", 0.001, "held_out_0.1", calls=calls) for calls in (1565, 7820)],
    ),
    (
        PAPER,
        "NeAda stays ahead, by {:.1f}, {:.1f} and {:.1f} points.",
        lambda: [lead(0.01, eps) for eps in EPS],
    ),
    (
        PAPER,
        "where both lose most ({4:.1f} against {5:.1f} points). At 0.02 and 0.05 it loses more "
        "({0:.1f} against {1:.1f} and {2:.1f} against {3:.1f})",
        lambda: [drop(method, eps) for eps in EPS for method in ("neada", "gdmax")],
    ),
    (
        PAPER,
        "is gone: {:.1f} points at 0.1 now, and {:.1f} with lr_y = 0.01.",
        lambda: [
            figure_4("neada", lr_y, "held_out_0.1", calls=7820, batch_norm="frozen")
            - figure_4("neada", lr_y, "held_out_0.1", calls=7820)
            for lr_y in (0.001, 0.01)
        ],
    ),
    # No learning rate of the adversary.
    (PAPER, "{} of {} hold. - **lr_y can go.**", lambda: holding(NO_LR)),
    (
        PAPER,
        "the default is ahead in {} of {} comparisons, and for {} of them the interval",
        lambda: (
            sum(mean > 0 for mean in means_over_lr_y()),
            len(means_over_lr_y()),
            holding(NO_LR, "not-worse")[0],
        ),
    ),
    (
        PAPER,
        "against Adam-15 the default is {} points ahead, but from {} to {} over the seeds",
        lambda: in_note(
            f"{NO_LR}/not-worse-adam-15-0.1",
            r"\+([.\d]+) in the mean, from \+([.\d]+) to \+([.\d]+)",
        ),
    ),
    (
        PAPER,
        "by seed) and {:.1f} behind the usual one",
        lambda: (grid("default", 1e-3)[None] - cell(NO_LR, name="dowg")["test_0.1"][0],),
    ),
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
    # Recipes.
    (
        FIFTEEN,
        "than the rule ({:.1f} % against {:.1f} %); they take {:.1f} times the time and {:.1f} "
        "times the gradients. With 0.003 they have {:.1f} %.",
        lambda: (
            100 * steps_mean("attacked", lr_y=0.03),
            100 * steps_mean("attacked", name="after"),
            steps_mean("seconds", lr_y=0.03) / steps_mean("seconds", name="after"),
            steps_mean("num_gradients", lr_y=0.03) / steps_mean("num_gradients", name="after"),
            100 * steps_mean("attacked", lr_y=0.003),
        ),
    ),
    (
        GAN,
        "({:.0f} % good samples in the mean) of the capped rule ({:.0f} %). TiAda has {:.0f} %,",
        lambda: tuple(map(good_samples, ("Adam, 5 critic steps", "NeAda, capped", "TiAda"))),
    ),
    (
        GAN,
        "it has moved the generator {} times.",
        lambda: {run["x_steps"] for run in gallery("03_wgan_gp")["NeAda, default rule"]},
    ),
    (
        GROUPS,
        "the worst group has {:.0f} % with plain training, {:.0f} % with balanced sampling, and "
        "between {:.0f} % and {:.0f} % with group DRO.",
        lambda: (
            worst_group("plain"),
            worst_group("balanced"),
            min(map(worst_group, DRO)),
            max(map(worst_group, DRO)),
        ),
    ),
    (
        GROUPS,
        "by {:.0f} points on average after ten passes and {:.0f} after thirty;",
        lambda: (statistics.fmean(gain(10)), statistics.fmean(gain(30))),
    ),
]


def words_of(path: Path) -> str:
    """The text of a page, or of the comments and the docstring of a script, in one line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        comments = re.findall(r"^# ?(.*)$", text, re.MULTILINE)
        text = "\n".join([ast.get_docstring(ast.parse(text)) or "", *comments])
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("page", "words", "numbers"), SENTENCES, ids=[words[:40] for _, words, _ in SENTENCES]
)
def test_a_sentence_has_the_numbers_of_the_files(page: str, words: str, numbers: Numbers) -> None:
    sentence = words.format(*numbers())
    assert sentence in words_of(ROOT / page), f"{page} should say: {sentence}"


# Made from files as a whole, or with numbers of versions and volumes only.
NOT_READ = ("benchmarks", "bibliography", "changelog", "coverage", "versions")
FOLDERS = ("*.md", "docs/*.md", "docs/api/*.md", "examples/*.py", "examples/gallery/[0-9G]*")
PAGES = [
    path
    for pattern in FOLDERS
    for path in sorted(ROOT.glob(pattern))
    if not path.name.lower().startswith(NOT_READ)
]
NUMBER = r"[-+]?\d+(?:[., ]\d+)*(?:e[-+]?\d+)?"
UNIT = r"(?:%|points?|times|-fold|[mµun]?s|seconds?|minutes?|hours?|[kMG]B|calls?)(?!\w)"
# With a unit, in a comparison, or with more than one digit besides zeros (rates have one: 0.01).
MEASURED = re.compile(
    rf"{NUMBER} ?{UNIT}|factor of {NUMBER}|\b{NUMBER} of {NUMBER}\b"
    r"|(?<![\d.])(?:[1-9]\d*\.\d+|0\.0*[1-9]\d+)(?![\d.])"
)
# What was chosen, or follows from what was chosen by arithmetic.
SETTINGS = (
    *(f"{calls} calls" for calls in ("100", "500", "960", "1565", "4000", "6000", "7820", "7900")),
    *("gamma = 1.3", "limit of the claims, 2.5", "Student t noise of 2.5", "100 times the usual"),
    *("one-sided 95 %", "a deficit of 3 points", "would allow a factor of 32", "2.5 eps / steps"),
    *("held 1000 times as accurately", "30 seconds later", "at least 196 of 200", "12 MB into"),
)
VERSION = re.compile(r"(?:Python|torch|scikit-learn|to|or|with `\S+`) \d\.\d+(?:\.\d+)?|arXiv:\S+")


def prose_of(path: Path) -> str:
    """The text without blocks of code, what scripts write between marks, formulas and links."""
    text = words_of(path)
    if path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
        text = re.sub(r"^```\w.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"^(    .*|!\[.*)$|\$[^$]*\$|\]\([^)]*\)", "", text, flags=re.MULTILINE)
    return " ".join(text.split())


def unexplained(path: Path) -> Iterator[str]:
    """Numbers that look measured and are in no sentence, with the words around them."""
    text = prose_of(path)
    known = [
        words.format(*numbers())
        for page, words, numbers in SENTENCES
        if page == path.relative_to(ROOT).as_posix()
    ]
    explained = set()
    for words in (*known, *SETTINGS):
        for place in re.finditer(re.escape(words), text):
            explained |= set(range(*place.span()))
    for place in (*VERSION.finditer(text), *re.finditer(r"``?[^`]*``?", text)):
        explained |= set(range(*place.span()))
    for found in MEASURED.finditer(text):
        if found.start() not in explained:
            yield text[max(0, found.start() - 40) : found.end() + 20]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_numbers_that_look_measured_are_in_a_sentence_with_a_file(path: Path) -> None:
    found = list(unexplained(path))
    assert not found, f"add to SENTENCES how they follow from a file, or take them out: {found}"


def test_measured_numbers_are_told_from_rates() -> None:
    for words in (
        "is 3 times",
        "7.5 %",
        "in 12 ms",
        "by 4 points",
        "8 of 10 seeds",
        "is 0.28",
        "1.9",
    ):
        assert MEASURED.search(words), words
    for words in (
        "lr_y = 0.001",
        "ratio 0.05",
        "15 inner steps",
        "three seeds",
        "of 1e-8",
        "13 x 13",
    ):
        assert not MEASURED.search(words), words
