"""Training: the loop against hand-written ones, budgets, evaluation, resume, and how runs end."""

import dataclasses
import errno
import io
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neada import attacks, data, models, tables
from neada.data import Batches, Dataset
from neada.runs import RunFolder
from neada.training import Progress, TrainConfig, TrainStatus, open_run, train
from neada.training.result import Schedule
from neada.training.tensorboard import TensorBoardLog

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
    """The released loop in plain torch: everything by `backward`, a fresh Adam with every batch."""
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
        while True:
            if calls == max_calls:
                return weights(model), t, calls
            distance = (z - inputs).square().sum(1).mean()
            loss = nn.functional.cross_entropy(model(z), targets)
            y_adam.zero_grad()
            (gamma * distance - loss).backward()
            calls, steps = calls + 1, steps + 1
            assert z.grad is not None
            squared = float(z.grad.square().sum())
            y_adam.step()
            enough = squared <= scale / (t + 1) or steps >= max(1, t)
            if enough if adaptive else steps == 5:
                break
        if calls == max_calls:
            return weights(model), t, calls
        x_adam.zero_grad()
        nn.functional.cross_entropy(model(z.detach()), targets).backward()
        x_adam.step()
        calls, t = calls + 1, t + 1
    raise AssertionError


@pytest.mark.parametrize("kind", [{"method": "neada"}, {"method": "gdmax", "inner_steps": 5}])
def test_the_released_loop_is_what_it_is_in_plain_torch(kind: dict[str, Any]) -> None:
    result = train(config(**kind, stop="released", stop_scale=1e-3, gamma=0.7), data=tiny_data())
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
def test_tiada_moves_the_model_and_stored_perturbations_at_once(objective: str) -> None:
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
        value = nn.functional.cross_entropy(model(y), targets)
        if objective == "wrm":
            value = value - 0.4 * (y - clean).square().sum(1).mean()
        *of_x, of_y = torch.autograd.grad(value, [*model.parameters(), y])
        own = of_y * len(clean)  # each sample's gradient of its own objective
        sum_x += sum(float(g.square().sum()) for g in of_x)
        sum_y += float(own.square().sum(1).mean())
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), of_x, strict=True):
                p -= 0.3 / max(sum_x, sum_y) ** 0.6 * gradient
            y += 0.2 / sum_y**0.4 * own
            reach = 0.1 if objective == "adversarial" else 9.0
            moved[ids] = torch.clamp(y, clean - reach, clean + reach).clamp(0.0, 1.0) - clean
    assert (result.calls, result.x_steps) == (120, 60)
    assert moved.abs().max() > 0.05
    torch.testing.assert_close(weights(result.model), weights(model), rtol=1e-4, atol=1e-6)


# Budgets, rows, evaluations.


@pytest.mark.parametrize("max_calls", [1, 2, 47])
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
    # A joint step of both players costs two, so one call may be left.
    assert max_calls - (kind.get("method") == "tiada") <= result.calls <= max_calls
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


def test_evaluations_in_between_may_look_at_fewer_samples() -> None:
    points = tiny_data()
    seen: list[int] = []

    class Counting(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if not self.training:
                seen.append(len(inputs))
            return super().forward(inputs)

    result = train(config(eval_every=60, eval_samples=7), data=points, model=Counting(2, 2))
    assert set(seen) == {7, 30, 40}
    sizes = [row["eval_samples"] for row in result.rows if "eval_samples" in row]
    assert sizes[:-1] == [7] * (len(sizes) - 1), "a curve is about the same samples throughout"
    assert sizes[-1] == len(points.targets_test)
    assert result.rows[-1]["calls"] == result.rows[-2]["calls"]


def test_by_default_evaluations_in_between_look_at_a_thousand_samples() -> None:
    assert TrainConfig().eval_samples == 1000
    result = train(config(eval_every=60), data=tiny_data())
    sizes = {row["eval_samples"] for row in result.rows if "eval_samples" in row}
    assert sizes == {len(tiny_data().targets_test)}


def test_the_worst_group_is_reported() -> None:
    points = tiny_data()
    result = train(config(objective="group"), data=points)
    model = result.model.eval()
    right = model(points.inputs_test).argmax(1) == points.targets_test
    assert points.groups_test is not None
    shares = [right[points.groups_test == g].float().mean().item() for g in (0, 1)]
    assert result.accuracies["test_worst_group"] == pytest.approx(min(shares))


def test_progress_hears_every_step() -> None:
    heard: list[Progress] = []
    result = train(config(eval_every=40), data=tiny_data(), progress=heard.append)
    assert [at.x_steps for at in heard] == list(range(1, result.x_steps + 1))
    parts = [at.part for at in heard]
    assert parts == sorted(parts) and 0.0 < parts[0] <= parts[-1] <= 1.0
    assert heard[0].accuracy is None and heard[-1].accuracy is not None


def test_schedules_go_by_calls_or_by_the_part_that_is_done() -> None:
    schedule = Schedule(None, in_all=4)
    due = []
    for part in (0.1, 0.25, 0.3, 0.8, 1.0):
        due.append(schedule.is_due(0, part))
        schedule.tick(0, part)
    assert due == [False, True, False, True, True]


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


# Runs in a folder.


class _Stop(Exception):  # noqa: N818
    pass


def stopping_after(num_steps: int) -> Callable[[Progress], None]:
    def hear(at: Progress) -> None:
        if at.x_steps >= num_steps:
            raise _Stop

    return hear


def test_training_works_outside_of_the_main_thread(tmp_path: Path) -> None:
    results = []
    worker = threading.Thread(
        target=lambda: results.append(train(config(), tmp_path, data=tiny_data()))
    )
    worker.start()
    worker.join()
    assert results[0].status is TrainStatus.FINISHED


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
    assert "gradient calls" in result.message and "\n" not in result.message
    assert bool(weights(result.model).isfinite().all())
    assert not (tmp_path / "result.json").exists()
    state = next(RunFolder(tmp_path).checkpoints()).state["model"]
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())


def test_a_model_that_overflowed_is_never_a_checkpoint(tmp_path: Path) -> None:
    asked = config(
        method="gdmax", inner_steps=1, x_optimizer="sgd", y_optimizer="sgd", lr_x=1e30, max_calls=60
    )
    result = train(asked, tmp_path, data=tiny_data(), checkpoint_seconds=1e-9)
    assert result.status is TrainStatus.NON_FINITE
    for checkpoint in RunFolder(tmp_path).checkpoints():
        state = checkpoint.state["model"]
        assert all(bool(tensor.isfinite().all()) for tensor in state.values())


def test_a_full_disk_is_a_sentence_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config(), data=tiny_data())
    fsync = os.fsync

    def fill_the_disk(at: Progress) -> None:
        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        if at.x_steps == 6:
            monkeypatch.setattr(os, "fsync", full)

    folder = tmp_path / "run"
    with pytest.raises(OSError, match="space|disk is full") as caught:
        train(config(), folder, data=tiny_data(), progress=fill_the_disk)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.setattr(os, "fsync", fsync)
    resumed = train(config(), folder, resume=True, data=tiny_data())
    assert without_times(resumed.rows) == without_times(whole.rows)


def test_a_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    train(config(max_calls=20), tmp_path, data=tiny_data())
    with pytest.raises(FileExistsError, match="already has"):
        train(config(max_calls=20), tmp_path, data=tiny_data())
    with pytest.raises(ValueError, match=r"gamma = [\d.]+, not 7.0"):
        train(config(max_calls=20, gamma=7.0), tmp_path, resume=True, data=tiny_data())
    result = train(config(max_calls=30), tmp_path, overwrite=True, data=tiny_data())
    assert result.calls == 30 and RunFolder(tmp_path).config()["max_calls"] == 30


# Runs opened again, and TensorBoard.


def test_a_run_can_be_opened_again(tmp_path: Path) -> None:
    asked = config(max_calls=60)
    result = train(asked, tmp_path)
    run = open_run(tmp_path)
    assert run.config == asked and run.complete
    assert run.data.checksums == data.load("synthetic").checksums
    assert torch.equal(weights(run.model), weights(result.model)) and not run.model.training
    with pytest.raises(ValueError, match="no run"):
        open_run(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"lr": 1.0}))
    with pytest.raises(ValueError, match="no training run"):
        open_run(tmp_path)


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_gets_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    hook, heard = threading.excepthook, []
    result = train(
        config(max_calls=40),
        tmp_path,
        data=tiny_data(),
        tensorboard=True,
        progress=lambda at: heard.append((threading.excepthook, threading.active_count())),
    )
    assert set(heard) == {(hook, threading.active_count())} and threading.excepthook is hook
    for name in ("loss", "test_clean", "seconds"):
        expected = [(row["calls"], pytest.approx(row[name])) for row in result.rows if name in row]
        assert scalars(tmp_path, name) == expected


def test_tensorboard_forgets_the_rows_after_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    asked = config(max_calls=40, log_every=1)
    with pytest.raises(_Stop):
        train(asked, tmp_path, data=tiny_data(), tensorboard=True, progress=stopping_after(5))
    result = train(asked, tmp_path, resume=True, data=tiny_data(), tensorboard=True)
    expected = [(row["calls"], pytest.approx(row["loss"])) for row in result.rows if "loss" in row]
    assert scalars(tmp_path, "loss") == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_tensorboard_log_on_a_full_disk_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    hook = threading.excepthook
    monkeypatch.setattr(Path, "open", lambda path, mode: io.FileIO("/dev/full", mode="w"))
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="log ends here: No space left on device") as caught:
        log = TensorBoardLog(tmp_path / "tensorboard", purge_step=0)
        log.append({"calls": 1, "loss": 0.5})
        log.append({"calls": 2, "loss": 0.25})
        log.close()
    assert len(caught) == 1 and threading.excepthook is hook
    with pytest.warns(UserWarning, match="log ends here: File exists") as caught:
        TensorBoardLog(tmp_path / "file", purge_step=0).append({"calls": 1, "loss": 0.5})
    assert len(caught) == 1


# Configs.


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"method": "neda"}, "there is no method 'neda'; did you mean 'neada'?"),
        (
            {"method": "adam-15"},
            "method must be one of 'neada', 'gdmax', 'tiada', got 'adam-15'",
        ),
        ({"y_optimizer": "adm"}, "there is no y_optimizer 'adm'; did you mean 'adam'?"),
        ({"method": "gdmax", "inner_steps": 0}, "inner_steps must be a whole number at least 1"),
        ({"inner_steps": 3}, "inner_steps=3 is for method 'gdmax', and not for 'neada'"),
        ({"method": "tiada", "x_optimizer": "sgd"}, "x_optimizer='sgd' is for method 'neada' or"),
        ({"objective": "wmr"}, "there is no objective 'wmr'; did you mean 'wrm'?"),
        ({"data": "mnits"}, "there is no data 'mnits'; did you mean 'mnist'?"),
        ({"gamma": 0.0}, "gamma must be a number greater than 0"),
        ({"gamma": "a"}, "gamma must be a number greater than 0, got 'a'"),
        ({"gamma": math.inf}, "gamma must be a number greater than 0 and finite"),
        ({"lr_x": math.nan}, "lr_x must be a number greater than 0"),
        ({"adjustment": -1.0}, "adjustment must be a number at least 0"),
        ({"max_calls": 0}, "max_calls must be a whole number at least 1"),
        ({"max_calls": 1.5}, "max_calls must be a whole number"),
        ({"eval_eps": (-0.1,)}, "eval_eps must be a number at least 0"),
        ({"eval_eps": (math.inf,)}, "eval_eps must be a number at least 0 and finite"),
        ({"eval_eps": 0.1}, "eval_eps must be numbers with commas between"),
        ({"seed": -1}, "seed must be a whole number at least 0"),
        ({"seed": 2**63}, "seed must be a whole number at least 0 and at most"),
        ({"download": "yes"}, "download must be True or False, got 'yes'"),
        ({"data_folder": 3}, "data_folder must be text, got 3"),
        ({"method": "tiada", "batch_norm": "frozen"}, "batch_norm='frozen' .* about an inner loop"),
        ({"method": "tiada", "per_sample": True}, "per_sample=True is for method 'neada' or"),
        ({"objective": "group", "per_sample": True}, "per_sample=True is for objective 'wrm' or"),
        ({"objective": "group", "regularizer": "none"}, "y moves once per batch"),
        (
            {"objective": "adversarial", "stop": "released"},
            "stop='released' is for objective 'wrm'",
        ),
        ({"stop": "released", "per_sample": True}, "looks at the whole batch"),
        (
            {"objective": "adversarial", "random_start": True, "warm_start": "memory"},
            "either random or warm",
        ),
        ({"random_start": True}, "random_start=True is for objective 'adversarial'"),
        ({"objective": "group", "dropout": "off"}, "dropout='off' is for objective 'wrm' or"),
        ({"eval_eps": (0.1, 0.1000001)}, "must differ in six digits"),
        ({"data": 5}, "data must be one of 'synthetic'"),
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


@pytest.mark.parametrize("field", dataclasses.fields(TrainConfig), ids=lambda field: field.name)
def test_every_field_has_words_and_refuses_nonsense(field: "dataclasses.Field[Any]") -> None:
    assert field.metadata["words"] and not field.metadata["words"].endswith(".")
    assert f"{field.name}: " in str(TrainConfig.__doc__)
    with pytest.raises(ValueError, match=rf"\b{field.name}\b"):
        TrainConfig(**{field.name: object()})


def test_the_config_needs_no_torch() -> None:
    script = "import sys, neada.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("table", [tables.OBJECTIVES, tables.METHODS, tables.OPTIMIZERS])
def test_every_entry_can_be_resolved(table: dict[str, tables.Entry]) -> None:
    for entry in table.values():
        assert callable(tables.resolve(entry.function)) and entry.description
        assert set(entry.options) <= {field.name for field in dataclasses.fields(TrainConfig)}


def test_a_new_attack_is_one_function_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.ATTACKS, "again", tables.Entry("neada.attacks:fgsm", "the same"))
    again = train(config(attack="again"), data=tiny_data()).accuracies
    assert again == train(config(), data=tiny_data()).accuracies


def test_a_new_optimizer_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = tables.OptimizerEntry("torch.optim:RMSprop", "RMSprop", lr_x=1e-3, lr_y=1e-2)
    monkeypatch.setitem(tables.OPTIMIZERS, "rmsprop", entry)
    assert train(config(x_optimizer="rmsprop"), data=tiny_data()).calls == 120


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_sample": True},
        {"method": "gdmax", "inner_steps": 3},
        {"batch_norm": "batch"},
        {"dropout": "on"},
        {"objective": "adversarial"},
        {"objective": "adversarial", "norm": "l1", "random_start": True},
        {"objective": "group"},
        {"objective": "group", "regularizer": "chi2"},
        {"method": "gdmax", "inner_steps": 2, "reuse_last": True},
    ],
)
def test_the_adversary_trains_without_a_learning_rate(options: dict[str, Any]) -> None:
    made = config(y_optimizer=None, lr_y=None, **options)
    result = train(made, data=tiny_data())
    assert result.status is TrainStatus.FINISHED
    assert result.calls == 120
    assert train(made, data=tiny_data()).accuracies == result.accuracies


def test_a_learning_rate_of_the_adversary_is_for_a_named_optimizer() -> None:
    with pytest.raises(ValueError, match="lr_y=0.1 is for a named y_optimizer"):
        TrainConfig(lr_y=0.1)
    assert TrainConfig(lr_y=0.1, y_optimizer="sgd").adversary == "sgd"
    assert TrainConfig(lr_y=0.1, stop="released").adversary == "adam", "as the authors' scripts"
    assert TrainConfig(lr_y=0.1, method="tiada").lr_y == 0.1
    assert TrainConfig().adversary is None


def test_what_needs_a_folder_says_so() -> None:
    with pytest.raises(ValueError, match="run folder"):
        train(config(), resume=True, data=tiny_data())


def test_a_config_is_plain_json_whatever_numbers_it_was_given() -> None:
    made = TrainConfig(gamma=np.float32(1.5), max_calls=np.int64(7), seed=np.int32(3))
    assert [type(v) for v in (made.gamma, made.max_calls, made.seed)] == [float, int, int]
    json.dumps(dataclasses.asdict(made))
    with pytest.raises(ValueError, match="data must be one of 'synthetic'"):
        TrainConfig(data=Path("mine.npz"))  # type: ignore[arg-type]
