"""Robust training of Figures 3 and 4: the numbers against a plain loop, verdicts, interruptions."""

import dataclasses
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from neada import data, models
from neada.experiments import Record, mnist_dro, robust_training, synthetic_dro
from neada.runs import RunFolder
from neada.training import TrainConfig

SYNTHETIC, MNIST = synthetic_dro, mnist_dro


def record_of(module: Any, config: Any, folder: Path) -> Record:
    run = RunFolder(folder)
    run.start(dataclasses.asdict(config))
    module.run(config, run, lambda part: None)
    run.finish()
    return Record(config, run.rows())


def small(module: Any) -> list[Any]:
    return [
        dataclasses.replace(config, max_calls=34, num_evaluations=1)
        for config in module.configs("quick", 1)
    ]


def released_loop(config: Any) -> tuple[int, float, float]:
    """The authors' loop, written out: x steps, mean loss of all of them, accuracy under attack."""
    points = data.load("synthetic", seed=config.seed)
    model = models.make("mlp", (2,), 2, seed=config.seed)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=config.lr_x)
    batches = data.Batches(
        points.inputs_train, points.targets_train, config.batch_size, seed=config.seed
    )
    losses: list[float] = []
    calls = 0
    for clean, labels, _ in batches.endless():
        z = clean.clone().requires_grad_()
        z_optimizer = torch.optim.Adam([z], lr=config.lr_y)
        k, t, enough = 0, len(losses), False
        while not enough and calls < config.max_calls:
            penalty = config.gamma * ((z - clean) ** 2).sum(1).mean()
            z.grad = None
            (penalty - nn.functional.cross_entropy(model(z), labels)).backward()
            z_optimizer.step()
            assert z.grad is not None
            k, calls = k + 1, calls + 1
            if config.method == "neada":
                enough = float((z.grad**2).sum()) <= config.stop_scale / (t + 1) or k >= t
            else:
                enough = k == 15
        if calls >= config.max_calls:
            break
        x_optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(z.detach()), labels)
        loss.backward()
        x_optimizer.step()
        calls += 1
        losses.append(loss.item())
    test = points.inputs_test.clone().requires_grad_()
    nn.functional.cross_entropy(model(test), points.targets_test).backward()
    assert test.grad is not None
    attacked = model(points.inputs_test + 0.5 * test.grad.sign()).argmax(1)
    return (
        len(losses),
        float(np.mean(losses)),
        float((attacked == points.targets_test).float().mean()),
    )


@pytest.mark.parametrize("method", ["gdmax", "neada"])
def test_a_run_is_the_loop_of_the_authors(method: Any, tmp_path: Path) -> None:
    config = synthetic_dro.Config(method, 0.08, seed=3, max_calls=400, num_evaluations=1)
    record = record_of(SYNTHETIC, config, tmp_path)
    x_steps, mean_loss, accuracy = released_loop(config)
    last = record.rows[-1]
    assert (last["calls"], last["x_steps"]) == (400, x_steps)
    assert last["test_0.5"] == pytest.approx(accuracy, abs=2 / 4000)
    steps = np.diff([0, *(row["x_steps"] for row in record.rows)])
    losses = np.array([row["loss"] for row in record.rows])
    assert (steps * losses).sum() / steps.sum() == pytest.approx(mean_loss, rel=1e-4)


@pytest.mark.parametrize("module", [SYNTHETIC, MNIST])
def test_a_tiny_run_gives_verdicts_and_a_figure(module: Any, tmp_path: Path) -> None:
    configs = small(module)
    found = [record_of(module, config, tmp_path / config.label) for config in configs]
    assert all(claim.verdict in ("holds", "fails") for claim in module.claims(found))
    assert all(record.rows[-1]["calls"] == 34 for record in found)
    module.figure(found).savefig(tmp_path / "whole.png")
    module.figure(found[:1]).savefig(tmp_path / "one.png")
    some = [claim.verdict for claim in module.claims(found[:2])]
    assert "not run" in some


def test_four_runs_of_the_paper_and_three_of_ours() -> None:
    for scale, max_calls, name in (("standard", 1565, "mnist"), ("paper", 78200, "mnist")):
        configs = mnist_dro.configs(scale, 1)  # type: ignore[arg-type]
        assert {(c.max_calls, c.data, c.lr_x, c.gamma, c.batch_size) for c in configs} == {
            (max_calls, name, 0.001, 1.3, 128)
        }
        paper = [c for c in configs if c.batch_norm == "batch"]
        assert {(c.method, c.lr_y) for c in paper} == {
            (method, rate) for method in ("gdmax", "neada") for rate in (0.001, 0.01)
        }
        assert [c.lr_y for c in configs if c.method == "default"] == [None]
        assert len(configs) == 7
    assert {c.max_calls for c in mnist_dro.configs("standard", max_calls=7820)} == {7820}
    assert len(mnist_dro.configs("quick", 3)) == 3 * 5 + 2


# Verdicts, on rows made up so that every number behind them is known.


def made_up(config: Any, accuracies: dict[str, float], early: float, late: float) -> Record:
    """The loss is `early` for the first half of the calls and `late` in the second."""
    rows: list[dict[str, Any]] = [
        {"calls": n * config.max_calls // 20, "loss": early if n <= 10 else late}
        for n in range(1, 21)
    ]
    for row in rows[9::10]:
        row.update(accuracies)
    return Record(config, rows)


def synthetic_records(table: dict[tuple[str, float], tuple[float, float, float]]) -> list[Record]:
    records = []
    for config in synthetic_dro.configs("standard", 3):
        accuracy, early, late = table[config.method, config.lr_y]
        accuracy += 0.01 * config.seed
        records.append(made_up(config, {"test_0.5": accuracy}, early, late))
    return records


# What the authors' scripts gave, as accuracies; of the losses only the order matters.
SCRIPTS = {
    ("gdmax", 0.08): (0.746, 0.6, 0.4),
    ("gdmax", 0.01): (0.667, 0.6, 0.015),
    ("neada", 0.08): (0.796, 0.3, 0.3),
    ("neada", 0.01): (0.765, 0.3, 0.2),
}


def verdicts(claims: Any) -> dict[str, str]:
    return {claim.id.split("/")[1]: claim.verdict for claim in claims}


def test_the_numbers_of_the_scripts_satisfy_every_claim_of_figure_3() -> None:
    found = synthetic_dro.claims(synthetic_records(SCRIPTS))
    assert set(verdicts(found).values()) == {"holds"}
    measured = {claim.id.split("/")[1]: claim.measured for claim in found}
    assert measured["higher-0.08"] == pytest.approx(5.0)
    assert measured["drop-adam-15"] == pytest.approx(7.9)
    assert measured["smaller-drop"] == pytest.approx(7.9 - 3.1)
    assert measured["adam-at-68"] == pytest.approx(67.7)
    assert measured["loss-first-0.08"] == pytest.approx(0.5)
    assert measured["lower-loss"] == pytest.approx(0.015 / 0.2)
    assert {claim.seeds for claim in found} == {3}


@pytest.mark.parametrize(
    ("run", "numbers", "flipped"),
    [
        (("neada", 0.08), (0.74, 0.3, 0.3), {"higher-0.08"}),
        (("gdmax", 0.08), (0.69, 0.6, 0.4), {"reasonable-adam", "drop-adam-15", "smaller-drop"}),
        (("neada", 0.01), (0.70, 0.3, 0.2), {"drop-neada-adam", "smaller-drop"}),
        (("gdmax", 0.01), (0.60, 0.6, 0.015), {"adam-at-68"}),
        (("neada", 0.01), (0.765, 0.7, 0.2), {"loss-first-0.01"}),
        (("gdmax", 0.01), (0.667, 0.6, 0.25), {"lower-loss"}),
    ],
)
def test_a_wrong_number_flips_its_claims_of_figure_3(run: Any, numbers: Any, flipped: Any) -> None:
    found = verdicts(synthetic_dro.claims(synthetic_records({**SCRIPTS, run: numbers})))
    assert {name for name, verdict in found.items() if verdict == "fails"} == flipped


def mnist_records(
    table: dict[tuple[str, str, float | None], tuple[float, float, float]],
) -> list[Record]:
    records = []
    for config in mnist_dro.configs("standard"):
        shares = table[config.method, config.batch_norm, config.lr_y]
        held_out = {
            f"held_out_{eps:g}": s for eps, s in zip((0.02, 0.05, 0.1), shares, strict=True)
        }
        test = {name.replace("held_out", "test"): share - 0.1 for name, share in held_out.items()}
        early = 1.0 if config.method == "gdmax" else 0.4
        records.append(made_up(config, {**held_out, **test, "held_out_clean": 1.0}, early, 0.1))
    return records


# The scripts' accuracies after 1565 calls; those with frozen statistics and the default made up.
SHORT = {
    ("gdmax", "batch", 0.01): (0.941, 0.883, 0.700),
    ("gdmax", "batch", 0.001): (0.936, 0.870, 0.656),
    ("neada", "batch", 0.01): (0.964, 0.921, 0.759),
    ("neada", "batch", 0.001): (0.957, 0.885, 0.602),
    ("neada", "frozen", 0.01): (0.964, 0.921, 0.800),
    ("neada", "frozen", 0.001): (0.957, 0.885, 0.500),
    ("default", "frozen", None): (0.964, 0.910, 0.789),
}


def test_the_short_runs_of_the_scripts_are_judged_as_they_are() -> None:
    claims = mnist_dro.claims(mnist_records(SHORT))
    found = verdicts(claims)
    assert {name for name, verdict in found.items() if verdict == "fails"} == {
        "higher-0.001-0.1",  # 60.2 against 65.6
        "smaller-drop-0.02",  # 0.7 against 0.5
        "smaller-drop-0.05",  # 3.6 against 1.3
        "smaller-drop-0.1",  # 15.7 against 4.4
        "most-at-0.1",
        "frozen-0.001",
        "default-0.05",  # 91.0 against 92.1
    }
    by_name = {claim.id.split("/")[1]: claim for claim in claims}
    assert by_name["higher-0.001-0.1"].measured == pytest.approx(60.2 - 65.6)
    assert by_name["smaller-drop-0.1"].measured == pytest.approx(4.4 - 15.7)
    assert by_name["both-good"].measured == pytest.approx(88.3)
    assert by_name["loss-first-0.01"].measured == pytest.approx(0.4)
    assert by_name["default-0.1"].measured == pytest.approx(78.9 - 75.9)
    assert "on the test set 65.9 against 60.0" in by_name["higher-0.01-0.1"].note


def test_a_better_neada_with_equal_rates_turns_the_claims() -> None:
    better = {**SHORT, ("neada", "batch", 0.001): (0.9645, 0.9215, 0.758)}
    found = verdicts(mnist_dro.claims(mnist_records(better)))
    turned = ("higher-0.001-0.1", "smaller-drop-0.02", "smaller-drop-0.05", "smaller-drop-0.1")
    assert {found[name] for name in (*turned, "most-at-0.1")} == {"holds"}


# Numbers of a run.


def test_runs_that_were_measured_at_other_calls_are_brought_together() -> None:
    config = synthetic_dro.configs("quick", 1)[0]
    first = Record(config, [{"calls": 0, "loss": 0.0}, {"calls": 100, "loss": 10.0}] * 1)
    second = Record(
        config, [{"calls": 50, "loss": 1.0}, {"calls": 80, "a": 1}, {"calls": 150, "loss": 3.0}]
    )
    calls, values = robust_training.over_calls({0: first, 1: second}, "loss")
    assert calls[0] == 50.0
    assert calls[-1] == 100.0  # nothing beyond what every run has
    np.testing.assert_allclose(values[[0, -1]], [[5.0, 1.0], [10.0, 2.0]])


def test_every_point_of_an_accuracy_is_a_measurement_on_as_many_images() -> None:
    config = mnist_dro.configs("standard", 1)[0]
    runs = {
        seed: Record(
            config,
            [
                {"calls": 190 + seed, "held_out_0.1": 0.3 + seed, "eval_samples": 1000},
                {"calls": 400, "held_out_0.1": 0.5 + seed, "eval_samples": 1000},
                {"calls": 400, "held_out_0.1": 0.9 + seed, "eval_samples": 10_000},
            ],
        )
        for seed in (0, 2)
    }
    calls, values = robust_training.over_calls(runs, "held_out_0.1")
    assert calls.tolist() == [191.0, 400.0]
    np.testing.assert_allclose(values, [[0.3, 2.3], [0.5, 2.5]])
    drawn = robust_training.figure_of(
        [robust_training.panel("", "held_out_0.1", "%", {"NeAda-Adam": runs})],
        list(runs.values()),
        "images",
    )
    (legend,) = drawn.legends
    note = " ".join(legend.get_title().get_text().split())
    assert note.endswith("each point: accuracy on 1000 images")


def test_differences_pair_the_seeds() -> None:
    config = synthetic_dro.configs("quick", 1)[0]
    runs = {seed: Record(config, [{"v": value}]) for seed, value in ((0, 1.0), (1, 5.0), (2, 7.0))}
    others = {
        seed: Record(config, [{"v": value}]) for seed, value in ((2, 8.0), (1, 2.0), (9, 0.0))
    }

    def value(record: Record) -> float:
        return robust_training.last(record, "v")

    assert robust_training.differences(runs, others, value).tolist() == [-3.0, 1.0]
    drops = robust_training.drop_differences((runs, others), (others, runs), value)
    assert drops.tolist() == [6.0, -2.0]
    first, second = ({0: Record(config, [{"v": 100.0 * hits / 359}])} for hits in (240, 241))
    tie = robust_training.drop_differences((first, second), (first, second), value)
    assert tie.tolist() == [0.0]
    shifted = {0: Record(config, [{"v": 100.0 * 301 / 359}])}
    after = {0: Record(config, [{"v": 100.0 * 302 / 359}])}
    tie = robust_training.drop_differences((first, second), (shifted, after), value)
    assert tie.tolist() == [0.0]  # a tie is not a lead of 7e-15 points
    assert robust_training.mean(np.array([])) is None


def test_the_larger_class_is_what_the_generator_draws() -> None:
    labels = torch.cat([data.load("synthetic", seed=seed).targets_train for seed in range(4)])
    share = 100.0 * float((labels == 0).float().mean())
    spread = 100.0 * math.sqrt(0.25 / len(labels))
    assert share == pytest.approx(synthetic_dro._larger_class(), abs=4 * spread)


# Interruptions and failures.


def tiny_training(**changes: Any) -> TrainConfig:
    return TrainConfig(data="synthetic", max_calls=30, stop="released", eval_eps=(0.5,), **changes)


def rows_without_time(run: RunFolder) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.rows()]


def test_an_interrupted_training_goes_on_and_a_finished_one_starts_again(tmp_path: Path) -> None:
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    config = tiny_training()
    for run in (whole, cut):
        run.start({})
    robust_training.train_into(config, whole, lambda part: None, resumable=True)

    def interrupt(part: float) -> None:
        if part > 0.5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        robust_training.train_into(config, cut, interrupt, resumable=True)
    assert cut.rows() == []
    for least, most in ((0.5, 1.0), (0.0, 0.5)):
        cut.start({})
        parts: list[float] = []
        robust_training.train_into(config, cut, parts.append, resumable=True)
        assert least < parts[0] < most
        assert rows_without_time(cut) == rows_without_time(whole)


def test_a_training_that_cannot_go_on_is_done_again(tmp_path: Path) -> None:
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    config = tiny_training()
    whole.start({})
    robust_training.train_into(config, whole, lambda part: None, resumable=True)

    def interrupt(part: float) -> None:
        signal.raise_signal(signal.SIGINT)

    for name in ("config.json", "environment.json"):
        cut.start({})
        with pytest.raises(KeyboardInterrupt):
            robust_training.train_into(config, cut, interrupt, resumable=True)
        (cut.folder / "training" / name).write_text("{}")
        robust_training.train_into(config, cut, lambda part: None, resumable=True)
        assert rows_without_time(cut) == rows_without_time(whole)


def test_a_training_that_diverges_is_a_result(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.start({})
    config = tiny_training(
        method="gdmax", x_optimizer="sgd", y_optimizer="sgd", inner_steps=1, lr_x=1e30
    )
    robust_training.train_into(config, run, lambda part: None, resumable=False)
    *_, there, end = run.rows()
    assert there["calls"] < end["calls"] == 30
    for row in (there, end):
        assert (row["test_clean"], row["test_0.5"]) == (0.0, 0.0)
        assert "gradient calls" in row["diverged"]


def diverged(record: Record, after: float) -> Record:
    """The same run, had it diverged after a part of its calls."""
    calls = int(after * record.config.max_calls)
    names = [name for name in record.rows[-1] if name.startswith(("test", "held"))]
    ends = [
        {"calls": at, **dict.fromkeys(names, 0.0), "diverged": "it did"}
        for at in (calls, record.config.max_calls)
    ]
    return Record(record.config, [row for row in record.rows if row["calls"] <= calls] + ends)


@pytest.mark.parametrize("after", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(
    ("module", "records", "rate", "lead", "ratio"),
    [
        (SYNTHETIC, synthetic_records(SCRIPTS), "0.01", 76.5 + 1.0, 0.3 / 0.6),
        (MNIST, mnist_records(SHORT), "0.001", 60.2, 0.4),
    ],
)
def test_a_method_that_diverges_loses_to_one_that_does_not(
    module: Any, records: Any, rate: str, lead: float, ratio: float, after: float, tmp_path: Path
) -> None:
    broken = [
        diverged(record, after) if record.config.method == "gdmax" else record for record in records
    ]
    by_name = {claim.id.split("/")[1]: claim for claim in module.claims(broken)}
    higher = by_name[f"higher-{rate}" + ("-0.1" if module is MNIST else "")]
    assert higher.measured == pytest.approx(lead) and higher.verdict == "holds"
    diverging = len({record.config.seed for record in records})
    assert f"; {diverging} of {2 * diverging} runs diverged" in higher.note
    first = by_name[f"loss-first-{rate}"]
    assert first.measured == pytest.approx(0.0 if after < 0.2 else ratio)
    module.figure(broken).savefig(tmp_path / "figure.png")


def test_without_mnist_the_run_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEADA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = RunFolder(tmp_path / "run")
    run.start({})
    with pytest.raises(data.DataError, match="mnist was not found in"):
        mnist_dro.run(mnist_dro.configs("standard")[0], run, lambda part: None)
