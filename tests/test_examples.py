"""The examples for several processes train a robust model."""

import importlib.util
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import neada
from tests.launch import TORCHRUN, run_python

EXAMPLES = Path(__file__).parents[1] / "examples"


def check_accuracies(printed: str) -> None:
    words = printed.replace(",", "").split()
    assert len(words) == 5  # one of the processes prints
    clean, attacked = float(words[1]), float(words[-1])
    assert clean > 0.8 and 0.3 < attacked <= clean


# Each example has a launch of its own: a second process group on the store of one launch may read
# the addresses of the first group, and its connection is refused.


def test_a_replicated_model_is_trained() -> None:
    check_accuracies(run_python([*TORCHRUN, str(EXAMPLES / "ddp.py"), "--steps", "30"]))


def test_a_sharded_model_is_trained() -> None:
    words = run_python([*TORCHRUN, str(EXAMPLES / "fsdp.py"), "--steps", "30"]).split()
    assert float(words[-1]) < 0.9 * float(words[-3])


# Frameworks: what two ranks find is compared with a loop of torch alone on their joint batches.

STEPS = 24  # more than two epochs
KEEPING = """
import os, sys
import torch
sys.path.insert(0, {examples!r})
import neada
import {name}

evaluate = neada.attacks.robust_accuracy

def keep(model, *arguments, **options):
    found = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.save(found, {folder!r} + "/" + os.environ.get("LOCAL_RANK", "0"))
    return evaluate(model, *arguments, **options)

neada.attacks.robust_accuracy = keep
{name}.main()
"""


def needs(extra: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(extra) is None
    return pytest.mark.skipif(missing, reason=f"needs the extra {extra!r}")


def trained_on_two_ranks(name: str, folder: Path, launcher: Iterable[str]) -> list[Tensor]:
    """The parameters that each rank has after an example has run as it is."""
    script = folder / "script.py"
    script.write_text(
        KEEPING.format(name=name, examples=str(EXAMPLES), folder=str(folder)), encoding="utf-8"
    )
    check_accuracies(run_python([*launcher, str(script), "--steps", str(STEPS)]))
    return [torch.load(folder / rank) for rank in ("0", "1")]


def trained_alone(batches: Iterator[list[Tensor]], decay: float) -> Tensor:
    digits = neada.data.load("digits")
    model = neada.models.make("mlp", digits.input_shape, digits.num_classes, seed=0, hidden=(128,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    robust = neada.robust.WRM(model, cross_entropy, gamma=3.0)
    norms = []
    for step, (inputs, targets) in enumerate(itertools.islice(batches, STEPS)):
        optimizer.param_groups[0]["lr"] = 0.1 * decay**step
        optimizer.zero_grad()
        robust.loss(robust.perturb(inputs, targets)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    assert min(norms) < 0.5 < max(norms)  # clipping alone could hide a wrong factor
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def check_as_alone(found: list[Tensor], alone: Tensor) -> None:
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], alone, rtol=1e-5, atol=1e-5)


def training_set() -> TensorDataset:
    digits = neada.data.load("digits")
    return TensorDataset(digits.inputs_train, digits.targets_train)


@pytest.mark.slow
@needs("accelerate")
def test_accelerate_trains_on_two_ranks_as_one_process_does(tmp_path: Path) -> None:
    order = torch.Generator().manual_seed(0)
    joint = DataLoader(training_set(), 128, shuffle=True, drop_last=True, generator=order)
    batches = itertools.chain.from_iterable(itertools.repeat(joint))
    found = trained_on_two_ranks("accelerate_wrm", tmp_path, TORCHRUN)
    check_as_alone(found, trained_alone(batches, decay=1.0))


@pytest.mark.slow
@needs("lightning")
def test_lightning_trains_on_two_ranks_as_one_process_does(tmp_path: Path) -> None:
    def batches() -> Iterator[list[Tensor]]:
        dataset = training_set()
        samplers = [DistributedSampler(dataset, 2, rank, seed=0) for rank in (0, 1)]
        for epoch in itertools.count():
            for sampler in samplers:
                sampler.set_epoch(epoch)
            parts = [DataLoader(dataset, 64, sampler=each, drop_last=True) for each in samplers]
            for first, second in zip(*parts, strict=True):
                yield [torch.cat(pair) for pair in zip(first, second, strict=True)]

    found = trained_on_two_ranks("lightning_wrm", tmp_path, launcher=())
    check_as_alone(found, trained_alone(batches(), decay=0.99))
