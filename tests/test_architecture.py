"""The tree's promises: imports go one way, importing changes nothing."""

import ast
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
    {"checks", "files"},
    {"scalars", "tables"},
    {"tensors", "distributed"},
    {"sets", "stopping"},
    {"optim"},
    {"inner"},
    {"steppers"},
    {"solve", "problems"},
    {"data", "models", "attacks"},
    {"robust"},
    {"runs"},
    {"training", "plots"},
    {"experiments"},
    {"report"},
    {"cli"},
    {"__main__"},
]
# The one import that goes up, inside the method that draws.
ALLOWED = {("solve", "plots")}
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

FILES = sorted(SOURCE.rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """The parts of neada that a file imports: `neada.optim.betting` counts as `optim`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("neada.")}
    return found


def module_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_module_has_a_place_in_the_order() -> None:
    assert {module_of(path) for path in FILES} - {"__init__"} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down_only(path: Path) -> None:
    module = module_of(path)
    if module == "__init__":
        return
    for target in imported_modules(path) - {module}:
        if (module, target) in ALLOWED:
            continue
        assert LEVEL[target] < LEVEL[module], f"{module} must not import {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    printing = any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls)
    assert not printing or module_of(path) == "cli"


def test_public_names_are_the_decided_ones() -> None:
    modules = {
        *("attacks", "data", "experiments", "models", "optim", "plots", "problems", "report"),
        *("robust", "runs", "sets", "steppers", "stopping", "training"),
    }
    functions = {"__version__", "constrain", "methods", "minimax", "MinimaxResult", "Status"}
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
        *("WRM", "AdversarialTraining", "GroupDRO", "PerturbationStore", "certificate"),
    }
    assert {"fgsm", "pgd", "robust_accuracy"} <= set(neada.attacks.__all__)
    assert set(neada.optim.__all__) == {
        *("AdaptiveSGD", "GeneralizedAdaGrad", "Backtracking", "StochasticLineSearch", "AdGD"),
        *("Polyak", "SPS", "DecSPS", "HazanKakade", "SCAdaNGD", "KT", "COCOB", "CoinBetting"),
        *("FreeRex", "DoG", "DoWG", "parameter_free_sgd"),
        *("NonFiniteGradient", "ParameterFreeResult", "LBFGS", "PlayerOptimizer"),
    }


IMPORT = """
import os, sys, threading
import numpy, torch
before = (torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist(),
          torch.get_default_dtype(), torch.get_num_threads(), os.getcwd(),
          threading.active_count(), dict(os.environ), torch.is_grad_enabled())
loaded = set(sys.modules)
import neada
after = (torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist(),
         torch.get_default_dtype(), torch.get_num_threads(), os.getcwd(),
         threading.active_count(), dict(os.environ), torch.is_grad_enabled())
assert before == after, "importing neada changed global state"
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - loaded}))
"""

# Heavy or optional: none of these may come with `import neada`.
NOT_IMPORTED = [
    *("scipy", "matplotlib", "pandas", "sklearn", "mlxtend", "tensorboard", "joblib", "tqdm"),
    *("torchvision", "pytest", "hypothesis", "sphinx", "IPython", "requests"),
]


def test_importing_changes_nothing_and_brings_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert "neada" in loaded
    assert not loaded & set(NOT_IMPORTED)
    outside = {name for name in loaded if name not in sys.stdlib_module_names}
    assert outside <= {"neada", "torch", "numpy"}


def test_the_version_is_the_one_that_is_built() -> None:
    project = (SOURCE.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{neada.__version__}"' in project
    assert (SOURCE / "py.typed").is_file()
