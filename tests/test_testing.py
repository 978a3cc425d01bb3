"""Each check of each battery detects an object that fails only this check."""

import math
from typing import Any

import pytest
import torch

import neada
from neada import optim, sets, stopping
from neada.testing import check_optimizer, check_rule, check_set, check_stepper


class Ball(sets.L2Ball):
    """A good set: each broken one changes one method of it."""


def ball(**methods: Any) -> sets.Set:
    return type("Ball", (Ball,), methods)(1.0)


def shrink_(self: Any, tensors: list[torch.Tensor]) -> None:
    sets.L2Ball._project_(self, tensors)
    if float(tensors[0].norm()) > 0.5:
        tensors[0].mul_(0.9)


def truncate_(self: Any, tensors: list[torch.Tensor]) -> None:
    sets.L2Ball._project_(self, tensors)
    for tensor in tensors:
        tensor.mul_(8.0).trunc_().div_(8.0)


def project_to_a_corner(self: Any, tensors: list[torch.Tensor]) -> None:
    if not self._contains(tensors):
        for tensor in tensors:
            tensor.zero_().reshape(-1)[:1] = 1.0


BROKEN_SETS = {
    "derived from": object(),
    "projection of a point is in the set": ball(_contains=lambda self, t: False),
    "bit for bit": ball(_project_=shrink_),
    "its own projection": ball(_project_=truncate_),
    "nearest": ball(_project_=project_to_a_corner),
    "moves is not in the set": ball(_contains=lambda self, t: True),
    "in place what project gives": ball(
        project=lambda self, point: sets.L2Ball(1.0).project(point),
        project_=lambda self, point: point,
    ),
    "one bool": ball(_contains=lambda self, t: torch.tensor(sets.L2Ball._contains(self, t))),
    "gradient_mapping is": ball(_mapping=lambda self, t, g: [-part for part in g]),
    "not interact": ball(separable_over_rows=True),
}


@pytest.mark.parametrize("promise", BROKEN_SETS)
def test_a_broken_set_is_seen(promise: str) -> None:
    with pytest.raises(AssertionError, match=f": .*{promise}.* Found: "):
        check_set(BROKEN_SETS[promise], shape=(3, 2))


class Count(stopping.StoppingRule):
    def __call__(self, state: stopping.InnerState) -> Any:
        return state.k >= 2

    def __str__(self) -> str:
        return "two steps"


def rule(**methods: Any) -> Any:
    return type("Count", (Count,), methods)()


def counts_its_calls(self: Any, state: stopping.InnerState) -> bool:
    self.asked = getattr(self, "asked", 0) + 1
    return self.asked % 7 == 0


def never_satisfied(self: Any, state: stopping.InnerState) -> bool:
    return state.k >= 2 and state.grad_sq_y != 0.01


def looks_at_x(self: Any, state: stopping.InnerState) -> bool:
    return state.k >= 2 or (state.grad_sq_x is not None and state.grad_sq_x > 1.0)


def only_the_first_row(self: Any, state: stopping.InnerState) -> bool:
    if state.grad_sq_y is None:
        return state.k >= 10
    return state.k >= 10 or bool((torch.as_tensor(state.grad_sq_y).reshape(-1) <= 1.0)[0])


def patience(self: Any, state: stopping.InnerState) -> bool:
    return state.k >= getattr(self, "limit", 2)


def remember(self: Any, grad_sq_x: Any) -> None:
    self.limit = 5


BROKEN_RULES = {
    "returns True or False": rule(__call__=lambda self, state: 1.0),
    "changes nothing": rule(__call__=counts_its_calls),
    "never revokes": rule(__call__=never_satisfied),
    "stops eventually": rule(__call__=lambda self, state: False),
    "needs_x_gradient": rule(__call__=looks_at_x),
    "one by one": rule(__call__=only_the_first_row),
    "on one line": rule(reason=lambda self, state: ""),
    "saved by state_dict": rule(__call__=patience, observe_x_gradient=remember),
}


@pytest.mark.parametrize("promise", BROKEN_RULES)
def test_a_broken_rule_is_seen(promise: str) -> None:
    check_rule(Count())
    with pytest.raises(AssertionError, match=f": .*{promise}.* Found: "):
        check_rule(BROKEN_RULES[promise])


class Plain(optim.PlayerOptimizer):
    """Gradient descent with momentum in numbers: each broken one changes one method."""

    def __init__(self, params: Any, maximize: bool = False, rowwise: bool = False) -> None:
        super().__init__(params, {}, maximize=maximize, constraint=None, rowwise=rowwise)

    def _initial_numbers(self, active: Any) -> dict[str, Any]:
        return {"num_steps": 0.0}

    def _update(self, active: Any, numbers: dict[str, Any], objective: Any) -> None:
        numbers["num_steps"] = numbers["num_steps"] + 1.0
        self._descend(active, 0.2 / (1.0 + 0.01 * numbers["num_steps"]))


def plain(**methods: Any) -> Any:
    return type("Plain", (Plain,), methods)


def ascend(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    self._descend(active, -0.2)


def use_raw_gradient(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    for param in active.params:
        param.sub_(0.1 * param.grad)


def scale_gradient(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    self._descend(active, 0.2)
    for param in active.params:
        param.grad.mul_(0.5)


def decay_all(self: Any, closure: Any = None, *, value: Any = None) -> Any:
    for param in self._all_params():
        param.data.mul_(0.9)
    return optim.PlayerOptimizer.step(self, closure, value=value)


def first_group_only(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    self._descend(active._replace(spans=active.spans[:1]), 0.2)


def half_precision(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    if active.params[0].dtype == torch.float64:
        self._descend(active, 0.2)
    else:
        self._descend(active, 0.1)


def silent(self: Any, closure: Any = None, *, value: Any = None) -> None:
    optim.PlayerOptimizer.step(self, closure, value=value)


def forgets(self: Any) -> dict[str, Any]:
    state = optim.PlayerOptimizer.state_dict(self)
    state["param_groups"][0].pop("numbers", None)
    return state


def no_projection(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    for param, gradient in zip(active.params, active.grads, strict=True):
        param.sub_(0.2 * gradient)


def divides(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    norm = torch.as_tensor(active.norm_sq, dtype=torch.float64).sqrt()
    for param, gradient in zip(active.params, active.grads, strict=True):
        param.sub_(0.1 * gradient / norm)
    self._project(active)


def accepts_all(self: Any, grads: Any) -> Any:
    return torch.nan_to_num(torch.cat([g.flatten() for g in grads])).square().sum().item()


def no_reset(self: Any, keep: str = "nothing") -> None:
    return None


def joint_step(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    size = math.sqrt(sum(float(g.square().sum()) for g in active.grads))
    self._descend(active, 0.1 / (1.0 + size))


def moves_at_rest(self: Any, active: Any, numbers: Any, objective: Any) -> None:
    self._descend(active, 0.1)
    if self.param_groups[0]["rowwise"] and not bool(torch.as_tensor(active.moving).all()):
        active.params[0].add_(0.1)


BROKEN_OPTIMIZERS = {
    "decreases": plain(_update=ascend),
    "With maximize": plain(_update=use_raw_gradient),
    "not change the gradients": plain(_update=scale_gradient),
    "without a gradient": plain(step=decay_all),
    "Every group moves": plain(_update=first_group_only),
    "in float32": plain(_update=half_precision),
    "returns the loss": plain(step=silent),
    "saved and loaded": plain(state_dict=forgets),
    "every iterate": plain(_update=no_projection),
    "gradient of zero": plain(_update=divides, _rests_at_zero_gradient=lambda self: False),
    "NaN or Inf": plain(_checked_norm_sq=accepts_all),
    "reset of": plain(reset=no_reset),
    "would take alone": plain(_update=joint_step),
    "behaves as it would alone": plain(_update=moves_at_rest, masks_rows=True),
}


@pytest.mark.parametrize("promise", BROKEN_OPTIMIZERS)
def test_a_broken_optimizer_is_seen(promise: str) -> None:
    with pytest.raises(AssertionError, match=f": .*{promise}.* Found: "):
        check_optimizer(BROKEN_OPTIMIZERS[promise], rowwise=True)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
def test_the_optimizers_of_torch_pass(name: str) -> None:
    check_optimizer(lambda params, **o: getattr(torch.optim, name)(params, lr=0.05, **o))
    check_optimizer(Plain, rowwise=True)


class Descent(neada.Stepper):
    """Simultaneous steps whose size falls with a counter of its own."""

    x_set: Any = None
    lr = 0.2
    bonus = 0

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__([(x, self.x_set)], [(y, None)], rowwise=False)
        self.count = 0

    def _step(self, closure: Any) -> Any:
        at_x, at_y = self.evaluate(closure)
        self.count += 1
        self.move()
        self.inner_steps += 1
        return at_x.value, at_x.mapping_sq, at_y.mapping_sq, ""

    @torch.no_grad()
    def move(self) -> None:
        for sign, player in ((-1.0, "x"), (1.0, "y")):
            for p in self._players[player]:
                p.add_(sign * self.lr / (1.0 + 0.01 * self.count) * p.grad)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.count = state_dict["count"]


def stepper(**methods: Any) -> Any:
    return type("Descent", (Descent,), methods)


def uncounted(self: Any, closure: Any) -> Any:
    closure().backward()
    return Descent._step(self, closure)


def wrong_norms(self: Any, closure: Any) -> Any:
    value, *_ = Descent._step(self, closure)
    return value, 1.0, 1.0, ""


@torch.no_grad()
def drifts(self: Any) -> None:
    Descent.move(self)
    self._players["x"][0].add_(1e-3)


def overspends(self: Any, closure: Any) -> Any:
    self.counters.max_calls, limit = None, self.counters.max_calls
    result = Descent._step(self, closure)
    self.counters.max_calls = limit
    return result


def swallows(self: Any, closure: Any) -> Any:
    try:
        return Descent._step(self, closure)
    except neada.NonFiniteGradient:
        return torch.zeros(()), math.nan, math.nan, ""


BROKEN_STEPPERS = {
    "derived from neada.Stepper": stepper(step=lambda self, closure, batch_size=1: None),
    "counters are": stepper(_step=uncounted),
    "squared norms": stepper(_step=wrong_norms),
    "x descends and y ascends": stepper(lr=-0.2),
    "inside the sets": stepper(x_set=sets.Box(0.1, 0.9)),
    "stationary point": stepper(move=drifts),
    "saved and loaded": stepper(load_state_dict=neada.Stepper.load_state_dict),
    "At most max_calls": stepper(_step=overspends),
    "NaN in a gradient": stepper(_step=swallows),
}


@pytest.mark.parametrize("promise", BROKEN_STEPPERS)
def test_a_broken_stepper_is_seen(promise: str) -> None:
    check_stepper(Descent)
    with pytest.raises(AssertionError, match=f": .*{promise}.* Found: "):
        check_stepper(BROKEN_STEPPERS[promise], accuracy=0.3)
