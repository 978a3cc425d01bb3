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

FILES = sorted(SOURCE.rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """The parts of neada that a file imports: `neada.optim.betting` counts as `optim`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    printing = any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls)
    assert not printing or module_of(path) == "cli"


# Private names stay in their package.

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
# Private names of torch, numpy and the standard library that have no public counterpart.
FOREIGN = {
    *("_replace", "_asdict", "_processes", "_SubParsersAction", "_option_string_actions", "_exit"),
    *("_forward_hooks", "_forward_pre_hooks", "_autograd", "_compiled_call_impl", "_call_impl"),
    *("_version", "_make_wrapper_subclass", "_top_saved_tensors_default_hooks"),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_attributes(tree: ast.Module) -> set[str]:
    """The private attributes of a file's classes: methods, class variables, `self._x = ...`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    found.add(member.name)
                elif isinstance(member, ast.Assign | ast.AnnAssign):
                    targets = member.targets if isinstance(member, ast.Assign) else [member.target]
                    found |= {ast.unparse(target) for target in targets}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return {name for name in found if is_private(name)}


def trespasses(trees: dict[Path, ast.Module]) -> list[str]:
    """Where a file uses a private attribute that no class of its own package has."""
    made: dict[str, set[str]] = {}
    for path, tree in trees.items():
        made.setdefault(module_of(path), set()).update(own_attributes(tree))
    found = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                known = made[module_of(path)] | FOREIGN
                if ast.unparse(node.value) != "torch" and node.attr not in known:
                    found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neada"):
                names = [alias.name for alias in node.names if is_private(alias.name)]
                found += [f"{path.name}:{node.lineno}: {name}" for name in names]
    return found


def test_no_private_name_of_another_package_is_touched() -> None:
    assert trespasses(TREES) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_what_is_imported_from_another_package_is_in_its_list_of_names(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("neada."):
            continue
        if node.module.split(".")[1] != module_of(path):
            module = importlib.import_module(node.module)
            names = {alias.name for alias in node.names}
            modules = {name for name in names if (SOURCE / node.module[6:] / f"{name}.py").exists()}
            assert names - modules <= set(module.__all__), f"line {node.lineno}"


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


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_library_does_not_import_the_reproduction(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.split(".")[0] == "reproduction"]


def test_only_steppers_know_which_stepper_is_nested() -> None:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = ast.unparse(node.args[1])
                assert module_of(path) == "steppers" or "NeAda" not in asked, path


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


IMPORT = """
import os, sys, threading
import numpy, torch
before = (torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist(),
          torch.get_default_dtype(), torch.get_num_threads(), os.getcwd(),
          threading.active_count(), dict(os.environ), torch.is_grad_enabled())
loaded = set(sys.modules)
import neada
for name in neada.__all__:
    getattr(neada, name)
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
    made_by_torch = "_remote_module_non_scriptable"  # from a text, with torch.distributed.nn
    assert outside <= {"neada", "torch", "numpy", made_by_torch}


LIGHT = {
    "import neada": ("import neada, neada.tables, neada.checks, neada.runs", {"torch", "numpy"}),
    "help": ("from neada.cli import main; main(['--help'])", {"torch", "numpy"}),
    "help of train": ("from neada.cli import main; main(['train', '--help'])", {"torch", "numpy"}),
    "minimax": (
        "import neada; assert neada.minimax(lambda x, y: x**2 + x * y - y**2, 1.0, 0.0).success",
        {"sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes"},
    ),
}


@pytest.mark.parametrize("name", LIGHT)
def test_a_start_loads_nothing_heavy(name: str) -> None:
    code, heavy = LIGHT[name]
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; sys.stderr.write(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )
    assert not set(result.stderr.split()) & heavy


def test_the_version_is_the_one_that_is_built() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{neada.__version__}"' in project
    assert (SOURCE / "py.typed").is_file()
