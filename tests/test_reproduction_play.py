"""Rows of `reproduction.play` against single runs with torch's own optimizers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from neada import NeAda, Simultaneous, problems
from neada.optim import GeneralizedAdaGrad
from neada.steppers import Stepper
from neada.stopping import GradientMapping, InnerSteps
from reproduction import mccormick
from reproduction.play import FAMILIES, METHODS, Rows, TorchRows, _on_grid, play
from reproduction.runner import load, reproduce

SGD: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "gda": lambda params, lr, eps, **options: torch.optim.SGD(params, lr, **options),
    "adagrad": lambda params, lr, eps, **options: torch.optim.Adagrad(params, lr, **options),
    "adam": lambda params, lr, eps, **options: torch.optim.Adam(params, lr, eps=eps, **options),
    "amsgrad": lambda params, lr, eps, **options: torch.optim.Adam(
        params, lr, eps=eps, amsgrad=True, **options
    ),
}
RULE = GradientMapping() | InnerSteps(lambda t: 0.1 * t)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def quadratic_rows(ratios: Tensor, max_calls: int) -> Rows:
    ones = torch.ones(len(ratios), 1, dtype=torch.float64)
    lr_y = torch.full_like(ratios, 0.2)
    budget = torch.full((len(ratios),), max_calls)
    return Rows(ones.clone(), 0.01 * ones, lr_y / ratios, lr_y, budget, RULE)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_is_torchs_optimizer_and_rows_can_rest(family: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rates = numbers(0.1, 0.2, 0.3)
    eps = 1e-10 if family == "adagrad" else 0.8
    together = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    single = [row.clone() for row in together]
    optimizer = TorchRows([together], rates, family, eps)  # type: ignore[arg-type]
    references = [SGD[family]([w], float(lr), eps) for w, lr in zip(single, rates, strict=True)]
    for step in range(40):
        rest = torch.rand(3, generator=generator) < (0.4 if step else 0.0)
        together.grad = torch.randn(3, 2, generator=generator, dtype=torch.float64)
        with optimizer.frozen_rows(rest):
            optimizer.step()
        for row, reference in enumerate(references):
            if not rest[row]:
                single[row].grad = together.grad[row].clone()
                reference.step()
    torch.testing.assert_close(together, torch.stack(single), rtol=0.0, atol=1e-14)


@pytest.mark.parametrize(("family", "name"), FAMILIES.items())
def test_without_nesting_a_row_is_a_plain_loop(family: str, name: str) -> None:
    ratios = numbers(1.0, 4.0)
    _, norms = play(METHODS[name], problems.make("quadratic").fun, quadratic_rows(ratios, 100))
    for row, ratio in enumerate(ratios.tolist()):
        x, y = numbers(1.0), numbers(0.01)
        descent, ascent = SGD[family]([x], 0.2 / ratio, 1e-8), SGD[family]([y], 0.2, 1e-8)
        for found in norms[:, row]:
            x.grad, y.grad = 2.0 * (y - 2.0 * x), y - 2.0 * x
            assert found == pytest.approx(float(x.grad.abs()), rel=1e-8)
            descent.step()
            ascent.step()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_nested_row_is_neada_with_torchs_optimizers(family: str) -> None:
    fun = problems.make("quadratic").fun
    calls, norms = play(
        METHODS[f"NeAda-{FAMILIES[family]}"],  # type: ignore[index]
        fun,
        quadratic_rows(numbers(1.0, 2.0), 300),
    )
    for row, ratio in enumerate((1.0, 2.0)):
        x, y = numbers(1.0).requires_grad_(), numbers(0.01).requires_grad_()
        stepper = NeAda(
            SGD[family]([x], 0.2 / ratio, 1e-8), SGD[family]([y], 0.2, 1e-8, maximize=True), RULE
        )
        for t in range(len(calls)):
            if calls[max(t - 1, 0), row] >= 300:
                break
            info = stepper.step(lambda x=x, y=y: fun(x, y))  # type: ignore[misc]
            assert stepper.total_calls == calls[t, row]
            assert float(info.grad_sq_x) ** 0.5 == pytest.approx(norms[t, row], rel=1e-7, abs=1e-12)


def test_a_row_does_not_depend_on_its_company() -> None:
    noise = 0.01 * torch.randn(3, 500, 4, dtype=torch.float64)
    starts = torch.randn(3, 4, dtype=torch.float64)

    def run(chosen: list[int]) -> tuple[np.ndarray, np.ndarray]:
        lr_y = torch.full((len(chosen),), 0.01, dtype=torch.float64)
        rows = Rows(
            starts[chosen, :2].clone(),
            starts[chosen, 2:].clone(),
            lr_y / 0.05,
            lr_y,
            torch.full((len(chosen),), 400),
            RULE,
        )
        mine = torch.tensor(chosen)
        fun = problems.make("mccormick").fun
        return play(METHODS["NeAda-Adam"], fun, rows, lambda calls: noise[mine, calls])

    (calls, norms), (alone_calls, alone_norms) = run([0, 1, 2]), run([1])
    num_steps = len(alone_calls)
    np.testing.assert_array_equal(calls[:num_steps, 1], alone_calls[:, 0])
    np.testing.assert_allclose(norms[:num_steps, 1], alone_norms[:, 0], rtol=1e-9)


def test_a_row_that_diverges_is_infinite_and_leaves_the_others_alone() -> None:
    rows = quadratic_rows(numbers(1.0, 8.0), 4000)
    calls, norms = play(METHODS["GDA"], problems.make("quadratic").fun, rows)
    assert norms[-1, 0] == np.inf and calls[-1, 0] < 4000 == calls[-1, 1]
    assert norms[-1, 1] < 1e-10


def test_curves_have_the_last_norm_and_the_largest_in_between() -> None:
    calls, norms = np.array([2.0, 5.0, 9.0, 9.0]), np.array([3.0, 8.0, 1.0, 99.0])
    last, peaks = _on_grid(calls, norms, np.array([0, 4, 8, 12]))
    assert last.tolist() == [3.0, 3.0, 8.0, 1.0]
    assert peaks.tolist() == [3.0, 3.0, 8.0, 8.0]


def test_a_custom_method_joins_figure_2_and_its_arrays_are_loaded_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mine(rows: Rows) -> Stepper:
        x_optimizer = GeneralizedAdaGrad([rows.x], rows.lr_x, rowwise=True)
        y_optimizer = GeneralizedAdaGrad([rows.y], rows.lr_y, maximize=True, rowwise=True)
        return NeAda(x_optimizer, y_optimizer, rows.stopping, rowwise=True)

    def diverging(rows: Rows) -> Stepper:
        x_optimizer = TorchRows([rows.x], 1e9 * rows.lr_x, "gda")
        y_optimizer = TorchRows([rows.y], rows.lr_y, "gda", maximize=True)
        return Simultaneous(x_optimizer, y_optimizer, rowwise=True)

    monkeypatch.setattr(mccormick, "METHODS", {"mine": mine, "diverging": diverging})
    monkeypatch.setattr(mccormick, "_MAX_CALLS", ((0.01, 400),))
    assert not reproduce(["mccormick"], "quick", tmp_path, seeds=[3, 5, 8]).broken
    converging, endless = load(tmp_path, "mccormick")
    assert converging.config.method == "mine" and converging.config.seeds == (3, 5, 8)
    paper, random = (converging.columns(ratio=0.01, start=start) for start in ("paper", "random"))
    assert {"calls", "grad_x", "peak"} <= paper.keys() and "start" not in paper
    assert paper["grad_x"].shape == random["grad_x"].shape == (len(paper["calls"]), 3)
    # All seeds have the paper's start but for the noise, and random ones are far apart.
    assert np.ptp(paper["grad_x"][0]) < 0.1 < np.ptp(random["grad_x"][0])
    assert np.isinf(endless.column("grad_x", start="random")[-1]).all()
    with pytest.raises(ValueError, match="quadratic"):
        load(tmp_path, "quadratic")
