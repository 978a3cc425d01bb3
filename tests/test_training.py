"""Training: the loop against hand-written ones, budgets, evaluation, resume, and how runs end."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neada import attacks, data, models
from neada.data import Batches, Dataset
from neada.runs import RunFolder
from neada.training import TrainConfig, TrainStatus, open_run, train

SMALL = TrainConfig(
    data="synthetic", lr_x=0.01, y_optimizer="adam", lr_y=0.05, batch_size=32, eval_eps=(0.3,)
)


def tiny_data(bounds: tuple[float, float] | None = None) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(120, 2, generator=generator)
    y = (x.sum(1) > 1.0).long()
    groups = (x[:, 0] > 0.7).long()
    return Dataset(
        *("tiny", x[:90], y[:90], x[90:], y[90:], 2, bounds),
        inputs_held_out=x[80:],
        targets_held_out=y[80:],
        groups_train=groups[:90],
        groups_test=groups[90:],
        checksums={"x": "of this test"},
    )


def config(**changes: Any) -> TrainConfig:
    if changes.get("method") == "tiada":
        changes.setdefault("y_optimizer", None)
    return dataclasses.replace(SMALL, **{"max_calls": 120, **changes})


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# The numbers, against loops written by hand.


def by_hand(
    adaptive: bool, lr_x: float, lr_y: float, gamma: float, scale: float, max_calls: int
) -> tuple[Tensor, int, int]:
    """NeAda and GDmax in plain torch: a fresh Adam with every batch."""
    points = tiny_data()
    model = models.make("mlp", (2,), 2, seed=0)
    x_adam = torch.optim.Adam(model.parameters(), lr=lr_x)
    calls = t = 0
    for inputs, targets, _ in Batches(
        points.inputs_train, points.targets_train, 32, seed=0
    ).endless():
        z = inputs.clone().requires_grad_()
        y_adam = torch.optim.Adam([z], lr=lr_y)
        steps = 0
        while steps < (t + 1 if adaptive else 5):
            if calls == max_calls:
                return weights(model), t, calls
            distance = (z - inputs).square().sum()
            loss = nn.functional.cross_entropy(model(z), targets, reduction="sum")
            y_adam.zero_grad()
            (gamma * distance - loss).backward()
            calls += 1
            assert z.grad is not None
            if adaptive and steps > 0 and z.grad.square().sum() / len(z) <= scale / (t + 1):
                break
            y_adam.step()
            steps += 1
        if calls == max_calls:
            return weights(model), t, calls
        x_adam.zero_grad()
        nn.functional.cross_entropy(model(z.detach()), targets).backward()
        x_adam.step()
        calls, t = calls + 1, t + 1
    raise AssertionError


@pytest.mark.parametrize("kind", [{"method": "neada"}, {"method": "gdmax", "inner_steps": 5}])
def test_training_is_what_it_is_in_plain_torch(kind: dict[str, Any]) -> None:
    result = train(config(**kind, stop_scale=1e-3, gamma=0.7), data=tiny_data())
    expected, x_steps, calls = by_hand(kind["method"] == "neada", 0.01, 0.05, 0.7, 1e-3, 120)
    assert (result.x_steps, result.calls) == (x_steps, calls)
    torch.testing.assert_close(weights(result.model), expected, rtol=1e-4, atol=1e-6)


def test_group_training_without_a_regularizer_is_exponentiated_gradient() -> None:
    points = tiny_data()
    result = train(
        config(
            objective="group",
            method="gdmax",
            inner_steps=1,
            x_optimizer="sgd",
            y_optimizer=None,
            lr_y=None,
            regularizer="none",
            max_calls=40,
        ),
        data=points,
    )
    model = models.make("mlp", (2,), 2, seed=0)
    assert points.groups_train is not None
    start = torch.bincount(points.groups_train).float()
    y = start = start / start.sum()
    total, spread_sq = torch.zeros(2), 0.0
    batches = Batches(
        points.inputs_train, points.targets_train, 32, seed=0, extras=[points.groups_train]
    ).endless()
    for _ in range(20):
        inputs, targets, _, groups = next(batches)
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        means = torch.stack([losses[groups == g].mean() for g in (0, 1)])
        gradients = torch.autograd.grad((y * means).sum(), list(model.parameters()))
        total += means.detach()
        spread_sq += (means[0] - means[1]).item() ** 2
        y = start * (math.sqrt(math.log(2.0) / spread_sq) * (total - total.max())).exp()
        y /= y.sum()
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p -= 0.01 * gradient
    assert result.calls == 40
    torch.testing.assert_close(weights(result.model), weights(model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("objective", ["wrm", "adversarial"])
def test_tiada_moves_stored_perturbations_and_then_the_model(objective: str) -> None:
    points = tiny_data(bounds=(0.0, 1.0))
    own = {"gamma": 0.4} if objective == "wrm" else {"eps": 0.1}
    result = train(
        config(objective=objective, method="tiada", lr_x=0.3, lr_y=0.2, **own),
        data=points,
    )
    model = models.make("mlp", (2,), 2, seed=0)
    moved = torch.zeros_like(points.inputs_train)
    sum_x = sum_y = 1e-8
    batches = Batches(points.inputs_train, points.targets_train, 32, seed=0).endless()
    for _ in range(60):
        clean, targets, ids = next(batches)
        y = (clean + moved[ids]).requires_grad_()
        value = nn.functional.cross_entropy(model(y), targets, reduction="sum")
        if objective == "wrm":
            value = value - 0.4 * (y - clean).square().sum()
        (of_y,) = torch.autograd.grad(value, y)
        sum_y += float(of_y.square().sum(1).mean())
        reach = 0.1 if objective == "adversarial" else 9.0
        worst = (y + 0.2 / sum_y**0.4 * of_y).detach()
        worst = torch.clamp(worst, clean - reach, clean + reach).clamp(0.0, 1.0)
        moved[ids] = worst - clean
        loss = nn.functional.cross_entropy(model(worst), targets)
        of_x = torch.autograd.grad(loss, list(model.parameters()))
        sum_x += sum(float(g.square().sum()) for g in of_x)
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), of_x, strict=True):
                p -= 0.3 / max(sum_x, sum_y) ** 0.6 * gradient
    assert (result.calls, result.x_steps) == (120, 60)
    assert moved.abs().max() > 0.05
    torch.testing.assert_close(weights(result.model), weights(model), rtol=1e-4, atol=1e-6)


# Budgets, rows, evaluations.


@pytest.mark.parametrize("max_calls", [1, 47])
@pytest.mark.parametrize(
    "kind",
    [
        {"method": "neada"},
        {"method": "gdmax", "inner_steps": 7, "x_optimizer": "sgd", "y_optimizer": "sgd"},
        {"objective": "adversarial", "eps": 0.2},
        {"objective": "group", "method": "neada", "lr_y": 0.1},
        {"objective": "group", "method": "tiada"},
        {"method": "tiada"},
    ],
    ids=str,
)
def test_no_call_more_than_allowed(max_calls: int, kind: dict[str, Any]) -> None:
    result = train(config(max_calls=max_calls, **kind), data=tiny_data())
    assert result.status is TrainStatus.FINISHED
    assert result.calls == max_calls
    assert result.rows[-1]["calls"] == result.calls
    assert "test_clean" in result.rows[-1]


def test_epochs_end_after_so_many_passes() -> None:
    result = train(
        config(max_calls=None, epochs=3, method="gdmax", inner_steps=2), data=tiny_data()
    )
    assert (result.x_steps, result.calls) == (9, 27)  # 90 samples are three batches of 32
    assert result.rows[-1]["epoch"] == 3


def test_rows_have_the_means_since_the_last_one() -> None:
    every = train(
        config(log_every=1, eval_every=120, method="gdmax", inner_steps=1), data=tiny_data()
    )
    coarse = train(
        config(log_every=10, eval_every=120, method="gdmax", inner_steps=1), data=tiny_data()
    )
    assert [row["calls"] for row in coarse.rows] == list(range(10, 121, 10))
    for i, row in enumerate(coarse.rows):
        losses = [fine["loss"] for fine in every.rows[5 * i : 5 * i + 5]]
        assert row["loss"] == pytest.approx(sum(losses) / 5)
        assert row["inner_steps"] == 1.0


def test_evaluations_are_those_of_the_attacks() -> None:
    points = tiny_data((0.0, 1.0))
    result = train(config(eval_every=30, eval_eps=(0.1, 0.3)), data=points)
    with_accuracies = [row["calls"] for row in result.rows if "test_clean" in row]
    assert len(with_accuracies) == 4 and with_accuracies[-1] == 120
    for part in ("test", "held-out"):
        x, y = points.splits[part]
        expected = attacks.robust_accuracy(
            result.model, [(x, y)], "fgsm", (0.1, 0.3), bounds=(0.0, 1.0)
        )
        name = part.replace("-", "_")
        assert result.accuracies[f"{name}_clean"] == expected.clean
        assert result.accuracies[f"{name}_0.1"] == expected.attacked[0.1]
        assert result.accuracies[f"{name}_0.3"] == expected.attacked[0.3]


@pytest.mark.parametrize(("final_samples", "last"), [(None, 7), ("all", 30), (9, 9), (7, 7)])
def test_eval_samples_limit_every_evaluation_but_one_that_is_asked_for(
    final_samples: int | str | None, last: int
) -> None:
    asked = config(eval_every=60, eval_samples=7, final_samples=final_samples)
    result = train(asked, data=tiny_data())
    sizes = [row["eval_samples"] for row in result.rows if "eval_samples" in row]
    assert sizes[-1] == last and set(sizes) == {7, last}
    assert sizes.count(last) == (len(sizes) if last == 7 else 1)


def test_the_worst_group_is_reported() -> None:
    points = tiny_data()
    result = train(config(objective="group"), data=points)
    model = result.model.eval()
    right = model(points.inputs_test).argmax(1) == points.targets_test
    assert points.groups_test is not None
    shares = [right[points.groups_test == g].float().mean().item() for g in (0, 1)]
    assert result.accuracies["test_worst_group"] == pytest.approx(min(shares))


# Nothing global.


def test_training_leaves_global_randomness_and_threads_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = train(config(max_calls=30), data=tiny_data(), model=dropping())
    assert torch.equal(torch.rand(3), expected)
    # And does not depend on it.
    again = train(config(max_calls=30), data=tiny_data(), model=dropping())
    assert torch.equal(weights(first.model), weights(again.model))
    threads = torch.get_num_threads()
    heard: list[int] = []
    train(
        config(max_calls=2, threads=threads + 1),
        data=tiny_data(),
        progress=lambda at: heard.append(torch.get_num_threads()),
    )
    assert heard == [threads + 1] and torch.get_num_threads() == threads


def dropping() -> nn.Module:
    """A network with all that a resume could forget: dropout, and statistics of a batch norm."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(11)
        return nn.Sequential(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ELU(), nn.Dropout(0.3), nn.Linear(8, 2)
        )


# How runs end badly.


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path: Path,
) -> None:
    asked = config(
        method="gdmax",
        inner_steps=1,
        x_optimizer="sgd",
        y_optimizer="sgd",
        max_calls=None,
        epochs=40,
    )

    class Breaking(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            broken = self.training and self.num_seen > 60
            self.num_seen += self.training
            return super().forward(inputs) * (math.nan if broken else 1.0)

        num_seen = 0

    result = train(asked, tmp_path, data=tiny_data(), model=Breaking(2, 2))
    assert result.status is TrainStatus.NON_FINITE
    assert "gradient" in result.message and "\n" not in result.message
    assert bool(weights(result.model).isfinite().all())
    assert not (tmp_path / "result.json").exists()
    state = next(RunFolder(tmp_path).checkpoints()).state["model"]
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())


# Runs opened again, and TensorBoard.


def test_a_run_can_be_opened_again(tmp_path: Path) -> None:
    asked = config(max_calls=60)
    result = train(asked, tmp_path)
    run = open_run(tmp_path)
    assert run.config == asked and run.complete
    assert run.data.checksums == data.load("synthetic").checksums
    assert torch.equal(weights(run.model), weights(result.model)) and not run.model.training
    with pytest.raises(ValueError, match="nowhere"):
        open_run(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"lr": 1.0}), encoding="utf-8")
    with pytest.raises(ValueError, match="lr"):
        open_run(tmp_path)


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_gets_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = train(config(max_calls=40), tmp_path, data=tiny_data(), tensorboard=True)
    for name in ("loss", "test_clean", "seconds"):
        expected = [(row["calls"], pytest.approx(row[name])) for row in result.rows if name in row]
        assert scalars(tmp_path, name) == expected


# Configs.


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"method": "neda"}, "method"),
        ({"method": "gdmax", "inner_steps": 0}, "inner_steps"),
        ({"method": "tiada", "x_optimizer": "sgd"}, "x_optimizer"),
        ({"lr_x": math.nan}, "lr_x"),
        ({"adjustment": -1.0}, "adjustment"),
        ({"eval_eps": (-0.1,)}, "eval_eps"),
        ({"seed": -1}, "seed"),
        ({"objective": "group", "regularizer": "none"}, "regularizer"),
        (
            {"objective": "adversarial", "random_start": True, "warm_start": "memory"},
            "random_start",
        ),
        ({"random_start": True}, "random_start"),
        ({"eval_eps": (0.1, 0.1000001)}, "differ"),
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense_is_one_sentence(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainConfig(**fields)


def test_a_config_survives_json() -> None:
    asked = TrainConfig(data="synthetic", eval_eps=(0.1, 0.5), lr_x=0.08)
    assert TrainConfig.from_dict(json.loads(json.dumps(dataclasses.asdict(asked)))) == asked
    assert asked.max_calls == 1000 and asked.model_name == "mlp"


def test_every_field_is_checked() -> None:
    for field in dataclasses.fields(TrainConfig):
        with pytest.raises(ValueError, match=rf"\b{field.name}\b"):
            TrainConfig(**{field.name: object()})


def test_a_learning_rate_of_the_adversary_is_for_a_named_optimizer() -> None:
    with pytest.raises(ValueError, match="lr_y"):
        TrainConfig(lr_y=0.1)
    assert TrainConfig(lr_y=0.1, y_optimizer="sgd").lr_y == 0.1
    assert TrainConfig(lr_y=0.1, method="tiada").lr_y == 0.1
