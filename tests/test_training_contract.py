"""A stepper in a real training loop: modules, autocast, clipping, schedulers, scalers."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from neada.inner import InnerOptions
from neada.optim import AdGD, Backtracking, GeneralizedAdaGrad
from neada.steppers import Alternating, Extragradient, NeAda, Simultaneous, Stepper, TiAda
from neada.stopping import FixedSteps, GradientMapping


class Game:
    """A small network x and an adversary y: a shift of the inputs, or a network of its own."""

    def __init__(self, adversary: str = "shift", dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        self.inputs = torch.randn(16, 4, dtype=dtype)
        self.targets = self.inputs[:, :1].sin()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
        shift = nn.Linear(4, 4) if adversary == "network" else nn.Linear(1, 4, bias=False)
        self.adversary = shift.to(dtype)
        self.adversary_input = (
            self.inputs if adversary == "network" else torch.ones(16, 1).to(dtype)
        )
        for param in self.adversary.parameters():
            nn.init.zeros_(param)
        self.x, self.y = list(self.model.parameters()), list(self.adversary.parameters())

    def __call__(self, rows: slice = slice(None)) -> Tensor:
        moved = self.adversary(self.adversary_input[rows])
        errors = self.model(self.inputs[rows] + moved) - self.targets[rows]
        return errors.square().mean() - 2.0 * moved.square().mean()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.x + self.y])


def nested(game: Game, rule: Any = None, **options: Any) -> NeAda:
    x_optimizer, y_optimizer = SGD(game.x, lr=0.1), SGD(game.y, lr=0.2, maximize=True)
    return NeAda(x_optimizer, y_optimizer, rule or FixedSteps(3), **options)


MAKE: dict[str, Callable[[Game], Stepper]] = {
    "simultaneous": lambda g: Simultaneous(Adam(g.x, 0.01), SGD(g.y, 0.1, maximize=True)),
    "alternating": lambda g: Alternating(SGD(g.x, 0.1), Adam(g.y, 0.01, maximize=True)),
    "nested": nested,
    "nested AdGD": lambda g: NeAda(GeneralizedAdaGrad(g.x), AdGD(g.y, maximize=True)),
    "nested line search": lambda g: NeAda(Adam(g.x, 0.01), Backtracking(g.y, maximize=True)),
    "extragradient": lambda g: Extragradient(g.x, g.y, 0.05, 0.1),
    "TiAda": lambda g: TiAda(g.x, g.y, 0.1, 0.1),
}


@pytest.mark.parametrize("adversary", ["shift", "network"])
@pytest.mark.parametrize("name", MAKE)
def test_modules_are_trained_on_either_side(name: str, adversary: str) -> None:
    game = Game(adversary)
    before, first = game.weights(), game().item()
    stepper = MAKE[name](game)
    for _ in range(40):
        info = stepper.step(game)
    assert info.value.item() < 0.6 * first  # measured: 0.04 to 0.36
    assert all(not torch.equal(p, q) for p, q in zip(game.weights(), before, strict=True))


# Hooks of the optimizers.


def clip(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1e-3)


@pytest.mark.parametrize("player", ["x", "y"])
@pytest.mark.parametrize("make", [SGD, partial(GeneralizedAdaGrad, v0=1.0)])
def test_gradients_are_clipped_before_an_optimizer_sees_them(player: str, make: Any) -> None:
    game = Game()
    x_optimizer, y_optimizer = make(game.x, lr=0.5), make(game.y, lr=0.5, maximize=True)
    clipped = x_optimizer if player == "x" else y_optimizer
    calls: list[int] = []
    clipped.register_step_pre_hook(clip)
    clipped.register_step_post_hook(lambda *args: calls.append(1))
    stepper = NeAda(x_optimizer, y_optimizer, FixedSteps(3), inner=InnerOptions(keep="everything"))
    before = game.weights()
    info = stepper.step(game)
    num_x = sum(p.numel() for p in game.x)
    moves = (game.weights() - before).split([num_x, len(before) - num_x])
    moved_x, moved_y = (move.norm().item() for move in moves)
    limits = {"x": (0.5e-3, moved_x), "y": (3 * 0.5e-3, moved_y)}
    limit, moved = limits[player]
    assert 0.5 * limit < moved <= limit * (1 + 1e-6)  # clip_grad_norm_ divides by norm + 1e-6
    assert (moved_y if player == "x" else moved_x) > 10 * limit
    assert len(calls) == (1 if player == "x" else 3)
    assert info.grad_sq_x > 1e-4  # what is reported is the gradient itself


@pytest.mark.parametrize("make", [SGD, GeneralizedAdaGrad])
def test_schedulers_on_either_optimizer(make: Any) -> None:
    scheduled, by_hand = Game(), Game()
    x_optimizer, y_optimizer = make(scheduled.x, lr=0.4), make(scheduled.y, lr=0.2, maximize=True)
    stepper = NeAda(x_optimizer, y_optimizer, FixedSteps(2), inner=InnerOptions(keep="everything"))
    schedulers = StepLR(x_optimizer, 2, gamma=0.5), ExponentialLR(y_optimizer, gamma=0.9)
    outer, inner = make(by_hand.x, lr=0.4), make(by_hand.y, lr=0.2, maximize=True)
    for t in range(6):
        stepper.step(scheduled)
        for scheduler in schedulers:
            scheduler.step()
        outer.param_groups[0]["lr"] = 0.4 * 0.5 ** (t // 2)
        inner.param_groups[0]["lr"] = 0.2 * 0.9**t
        for optimizer, params in ((inner, by_hand.y),) * 2 + ((outer, by_hand.x),):
            gradients = torch.autograd.grad(by_hand(), params)
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = gradient
            optimizer.step()
    assert x_optimizer.param_groups[0]["lr"] == 0.4 * 0.5**3
    # rates multiplied one by one against powers
    torch.testing.assert_close(scheduled.weights(), by_hand.weights(), rtol=1e-12, atol=1e-14)


def test_accumulated_gradients_equal_those_of_the_whole_batch() -> None:
    whole, parts = Game(), Game()
    slices = [slice(4 * i, 4 * i + 4) for i in range(4)]

    def batches() -> Iterator[slice]:
        while True:
            yield from [slice(None)] * 3 + slices  # three steps of y, then four parts for x

    source = batches()
    one, four = nested(whole), nested(parts, x_samples=4)
    for _ in range(5):
        one.step(whole, batch_size=16)
        four.step(lambda: parts(next(source)), batch_size=4)
    # the mean of four means of four rounds differently from the mean of sixteen
    torch.testing.assert_close(whole.weights(), parts.weights(), rtol=1e-11, atol=1e-13)
    assert (one.calls_x, four.calls_x) == (5, 20)
    assert one.samples_x == four.samples_x == 80


# Scaled losses: the stepper unscales before anything looks at a gradient.


@pytest.mark.parametrize("rule", [FixedSteps(3), GradientMapping(1e-4)])
def test_a_scaler_changes_nothing(rule: Any) -> None:
    games = Game(dtype=torch.float32), Game(dtype=torch.float32)
    plain, with_scaler = (nested(game, rule, inner=InnerOptions(max_steps=30)) for game in games)
    with_scaler.grad_scaler = GradScaler("cpu", init_scale=2.0**10)
    for _ in range(5):
        infos = plain.step(games[0]), with_scaler.step(games[1])
    assert infos[0].inner_steps == infos[1].inner_steps
    assert torch.equal(games[0].weights(), games[1].weights())  # powers of two are exact


# Each player's gradient is taken for that player only.


def test_the_inner_loop_computes_nothing_for_the_model() -> None:
    game = Game()
    stepper = nested(game)
    watched: list[tuple[bool, bool]] = []
    kept: list[Any] = [None] * len(game.x)
    weights = [p.detach().clone() for p in game.x]

    def look(*args: Any) -> None:
        untouched = all(p.grad is gradient for p, gradient in zip(game.x, kept, strict=True))
        still = all(torch.equal(p, w) for p, w in zip(game.x, weights, strict=True))
        watched.append((untouched, still))

    stepper.y_optimizer.register_step_post_hook(look)
    for _ in range(3):
        stepper.step(game)
        kept = [p.grad for p in game.x]
        weights = [p.detach().clone() for p in game.x]
    assert watched == [(True, True)] * 9


def test_the_x_step_computes_nothing_for_the_adversary() -> None:
    game = Game("network")
    stepper = nested(game, FixedSteps(0), inner=InnerOptions(min_steps=0))
    stepper.step(game)
    assert all(p.grad is None for p in game.y)
    assert all(p.grad is not None for p in game.x)


@pytest.mark.parametrize("name", ["simultaneous", "nested"])
def test_a_frozen_layer_stays_as_it_is(name: str) -> None:
    game = Game()
    for param in game.model[0].parameters():
        param.requires_grad_(False)
    frozen = [p.detach().clone() for p in game.model[0].parameters()]
    MAKE[name](game).step(game)
    assert all(torch.equal(p, q) for p, q in zip(game.model[0].parameters(), frozen, strict=True))
