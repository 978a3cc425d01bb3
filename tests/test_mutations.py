"""Another algorithm makes a claim about its theorem "not supported"."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neada.runs import RunFolder
from neada.stopping import FixedSteps
from reproduction import deterministic_rate, high_probability, lemma, regret, stochastic_rate
from reproduction.experiment import Record


def changed(make: Callable[..., Any], mutation: str) -> Callable[..., Any]:
    """Return the optimizers of both players, one of them changed."""

    def mutant(params: Any, lr: Any = 1.0, *args: Any, **options: Any) -> Any:
        player = "y" if options.get("maximize") else "x"
        if mutation == f"freeze {player}":
            lr = 1e-12 * lr
        if mutation == "half the exponent" and player == "x":
            options["alpha"] = options.get("alpha", 0.5) / 2.0
        return make(params, lr, *args, **options) if args else make(params, lr=lr, **options)

    return mutant


def one_step(*_: Any) -> FixedSteps:
    return FixedSteps(1)


GD, SGD = "GD 1/l (knows l)", "SGD 1/(mu k)"
CASES = [
    (lemma, "freeze x", "gda-border", {"family": "gda"}),
    (lemma, "freeze y", "adam-border", {"family": "adam"}),
    (deterministic_rate, "none", "", {"solver": GD}),
    (deterministic_rate, "freeze x", "gd-1-l", {"solver": GD}),
    (deterministic_rate, "freeze y", "gd-1-l", {"solver": GD}),
    (deterministic_rate, "no inner loop", "sc-adangd", {"solver": "SC-AdaNGD (knows mu)"}),
    (stochastic_rate, "none", "", {"all_cases": True}),
    (stochastic_rate, "freeze x", "tail", {"all_cases": True}),
    (stochastic_rate, "freeze y", "tail", {"all_cases": True}),
    (stochastic_rate, "no inner loop", "tail", {"all_cases": True}),
    (stochastic_rate, "half the exponent", "batch-of-1", {"all_cases": True}),
    (regret, "none", "", {"alpha": 0.5}),
    (regret, "half the exponent", "exponent-0.5", {"alpha": 0.5}),
    (high_probability, "none", "", {}),
    (high_probability, "freeze x", "tail", {}),
    (high_probability, "freeze y", "premise", {}),
    (high_probability, "no inner loop", "premise", {}),
    (high_probability, "half the exponent", "tail", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "mutation", "name", "chosen"),
    CASES,
    ids=[f"{module.__name__.rpartition('.')[2]}, {mutation}" for module, mutation, *_ in CASES],
)
def test_another_algorithm_is_not_supported(
    module: Any,
    mutation: str,
    name: str,
    chosen: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for optimizer in ("GeneralizedAdaGrad", "AdaptiveSGD"):
        if hasattr(module, optimizer):
            monkeypatch.setattr(module, optimizer, changed(getattr(module, optimizer), mutation))
    if module is deterministic_rate and mutation == "freeze y":
        ascent = changed(deterministic_rate.torch.optim.SGD, mutation)
        monkeypatch.setitem(module._SOLVERS, GD, partial(ascent, lr=0.1))
    if module is stochastic_rate:
        monkeypatch.setitem(module._SOLVERS, SGD, changed(module._SOLVERS[SGD], mutation))
    if mutation == "no inner loop":
        for rule in ("GradientMapping", "InnerSteps"):
            if hasattr(module, rule):
                monkeypatch.setattr(module, rule, one_step)
        if module is stochastic_rate:
            monkeypatch.setitem(module._COUNTS, "t+1", one_step())
    records = []
    for number, config in enumerate(module.configs("quick")):
        if chosen.items() <= dataclasses.asdict(config).items():
            run = RunFolder(tmp_path / str(number))
            run.start(dataclasses.asdict(config))
            module.run(config, run)
            records.append(Record(config, run.rows()))
    found = {claim.id.partition("/")[2]: claim.result for claim in module.claims(records)}
    tested = set(found.values()) - {"not tested"}
    assert found[name] == "not supported" if name else tested == {"supported"}
