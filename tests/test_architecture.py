"""The tree's promises: imports go one way, importing changes nothing."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import neada

SOURCE = Path(neada.__file__).parent

# From the ground up; a module may import only what stands on a lower line or beside it in its
# own package. One line may hold several modules that do not import each other.
LAYERS: list[set[str]] = [
    {"lazy", "checks", "progress"},
    {"tables"},
    {"scalars"},
    {"tensors", "parallel", "devices", "folding"},
    {"sets", "stopping"},
    {"optim"},
    {"inner"},
    {"steppers"},
    {"testing"},
    {"solve", "problems"},
    {"data", "models", "attacks"},
    {"robust"},
    {"runs"},
    {"training", "plots"},
    {"estimators"},
    {"cli"},
    {"__main__"},
]
# The one import that goes up, inside the method that draws.
ALLOWED = {("solve", "plots")}
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
EVERY_FILE = pytest.mark.parametrize("path", TREES, ids=lambda p: str(p.relative_to(SOURCE)))


def module_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_module_has_a_place_in_the_order() -> None:
    assert {module_of(path) for path in TREES} - {"__init__"} <= set(LEVEL)


@EVERY_FILE
def test_imports_go_down_and_take_public_names_only(path: Path) -> None:
    own = module_of(path)
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            targets = {alias.name: set() for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            targets = {node.module: {alias.name for alias in node.names}}
        else:
            continue
        for target, names in targets.items():
            if target == "neada":
                others = names - {own}
            elif target.startswith("neada.") and target.split(".")[1] != own:
                others = {target.split(".")[1]}
                folder = SOURCE.parent / target.replace(".", "/")
                modules = {name for name in names if (folder / f"{name}.py").exists()}
                assert names - modules <= set(importlib.import_module(target).__all__), target
            else:
                continue
            for other in others:
                is_below = own == "__init__" or LEVEL[other] < LEVEL[own]
                assert is_below or (own, other) in ALLOWED, f"{own} must not import {other}"


@EVERY_FILE
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)]
    assert module_of(path) == "cli" or "print" not in {ast.unparse(call.func) for call in calls}


# The reproduction uses what users have.

REPRODUCTION = Path(__file__).parents[1] / "reproduction"


def borrowed(tree: ast.Module) -> set[tuple[str, str]]:
    """The names of neada that a file imports or reaches through a module: (module, name)."""
    found, modules = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
            if node.module == "neada":
                modules |= {
                    alias.asname or alias.name: f"neada.{alias.name}" for alias in node.names
                }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            found.add((modules[ast.unparse(node.value)], node.attr))
    return {(module, name) for module, name in found if module.split(".")[0] == "neada"}


@pytest.mark.parametrize(
    "path", sorted(REPRODUCTION.rglob("*.py")), ids=lambda p: str(p.relative_to(REPRODUCTION))
)
def test_the_reproduction_uses_public_names_only(path: Path) -> None:
    for module, name in borrowed(ast.parse(path.read_text(encoding="utf-8"))):
        assert module == "neada" or module.split(".")[1] in neada.__all__, module
        assert module.count(".") <= 1, f"{module}.{name}"
        assert name in importlib.import_module(module).__all__, f"{module}.{name}"


@EVERY_FILE
def test_the_library_does_not_import_the_reproduction(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.split(".")[0] == "reproduction"]


def test_public_names_are_the_decided_ones() -> None:
    modules = {
        *("attacks", "data", "estimators", "inner", "models", "optim", "plots"),
        *("problems", "robust", "runs", "sets", "steppers", "stopping", "testing"),
        "training",
    }
    functions = {
        *("__version__", "constrain", "make_stepper", "methods", "minimax", "MinimaxResult"),
        *("minimize", "MinimizeResult", "Lagrangian"),
        *("Status", "Players", "BudgetExhausted", "NonFiniteGradient"),
    }
    assert set(neada.__all__) == modules | functions | set(neada.steppers.__all__)
    assert set(neada.steppers.__all__) == {
        *("Stepper", "StepInfo", "Simultaneous", "Alternating", "NeAda", "Extragradient"),
        *("PastExtragradient", "OptimisticGDA", "AdaptiveExtragradient", "UniversalMirrorProx"),
        *("SmoothedAGDA", "TiAda", "TiAdaAdam", "AdaGDA", "VRAdaGDA"),
    }
    assert set(neada.stopping.__all__) == {
        *("GradientMapping", "InnerSteps", "FixedSteps", "FixedAccuracy", "RelativeAccuracy"),
        *("StoppingRule", "InnerState"),
    }
    assert set(neada.sets.__all__) == {
        *("Set", "WholeSpace", "Box", "NonNegative", "HalfSpace", "L2Ball", "LinfBall", "L1Ball"),
        *("Simplex", "Product"),
    }
    assert set(neada.robust.__all__) == {
        *("WRM", "AdversarialTraining", "TRADES", "GroupDRO", "Adversary", "certificate"),
        *("Certificate", "RobustInfo", "Perturbed"),
    }
    assert {"fgsm", "pgd", "robust_accuracy"} <= set(neada.attacks.__all__)
    assert set(neada.optim.__all__) == {
        *("AdaptiveSGD", "GeneralizedAdaGrad", "Backtracking", "StochasticLineSearch", "AdGD"),
        *("Polyak", "SPS", "DecSPS", "HazanKakade", "SCAdaNGD", "KT", "COCOB", "CoinBetting"),
        *("FreeRex", "DoG", "DoWG", "StronglyConvexSGD", "parameter_free_sgd"),
        *("NonFiniteGradient", "ParameterFreeResult", "LBFGS", "SPG", "PlayerOptimizer"),
    }


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout


STATE = """
def state():
    return (torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist(),
            torch.get_default_dtype(), torch.get_num_threads(), os.getcwd(),
            threading.active_count(), dict(os.environ), torch.is_grad_enabled())
"""


def test_importing_changes_nothing_and_imports_no_optional_package() -> None:
    loaded = run(
        f"import os, sys, threading, numpy, torch{STATE}"
        "before, known = state(), set(sys.modules)\n"
        "import neada\n"
        "for name in neada.__all__: getattr(neada, name)\n"
        "assert state() == before\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - known})"
    )
    made_by_torch = "_remote_module_non_scriptable"  # from a text, with torch.distributed.nn
    allowed = {"neada", "torch", "numpy", made_by_torch} | sys.stdlib_module_names
    assert "neada" in loaded.split() and set(loaded.split()) <= allowed


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (
            "import neada, neada.checks, neada.runs\n"
            "from neada.cli import main; main(['--help']); main(['train', '--help'])",
            {"torch", "numpy"},
        ),
        (
            "import neada\n"
            "assert neada.minimax(lambda x, y: x**2 + x * y - y**2, 1.0, 0.0).success",
            {"sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes"},
        ),
    ],
    ids=["help", "minimax"],
)
def test_a_start_loads_nothing_heavy(code: str, heavy: set[str]) -> None:
    *_, loaded = run(f"{code}\nimport sys; print(); print(*sys.modules)").splitlines()
    assert "neada" in loaded.split() and not set(loaded.split()) & heavy
