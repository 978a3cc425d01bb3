"""Build the package and use it as somebody does who has installed nothing else.

Builds the sdist, and the wheel from it; installs the wheel without extras into an environment that
has torch, numpy and what these need, and nothing else; then, from another folder: the command line,
the examples of the README, every module, the sentences about missing extras, and a user's script
under mypy. `make dist` runs it. Needs no network.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

USER_SCRIPT = """\
import torch

import neada
from neada.robust import WRM, RobustInfo


def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y - 0.5 * y @ y


reveal_type(neada.minimax(f, [0.5], [0.1]))
reveal_type(neada.sets.L2Ball(1.0))
model = torch.nn.Linear(2, 2)
robust = WRM(model, torch.nn.functional.cross_entropy, gamma=1.3)
optimizer = torch.optim.Adam(model.parameters())
info: RobustInfo = robust.step(optimizer, torch.zeros(4, 2), torch.zeros(4))
robust.step(optimizer, "inputs", None)
neada.minimax(f, [0.5], [0.1], tolerance=1e-3)
"""
# What mypy must say of it: the types, and the two mistakes in the last lines.
EXPECTED = [
    '11: note: Revealed type is "neada.solve.result.MinimaxResult"',
    '12: note: Revealed type is "neada.sets.balls.L2Ball"',
    '17: error: Argument 2 to "step" of "InputObjective" has incompatible type "str"',
    '18: error: Unexpected keyword argument "tolerance" for "minimax"',
]
IMPORT_ALL = """\
import importlib, pkgutil, neada
names = [found.name for found in pkgutil.walk_packages(neada.__path__, "neada.")]
names = [name for name in names if not name.startswith("neada.estimators.")]  # the package speaks
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as error:  # a module may need an extra, and has to say so
        assert "pip install 'neada[" in str(error), f"{name}: {error}"
print(len(names))
"""


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """What a command printed; ends this script where it ends otherwise than it should."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != code:
        shown = " ".join(str(part) for part in command[:4])
        sys.exit(f"{shown} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def build() -> Path:
    """The wheel, built from the sdist; both are in `dist` afterwards, alone."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ".", cwd=ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    kinds = ("py", "typed")
    paths = [path for kind in kinds for path in ROOT.glob(f"src/neada/**/*.{kind}")]
    source = {path.relative_to(ROOT / "src").as_posix() for path in paths}
    metadata = {name for name in names if ".dist-info/" in name}
    check(set(names) - metadata == source, "the wheel is not src/neada")
    with tarfile.open(sdist) as archive:
        parts = {name.split("/")[1] for name in archive.getnames()}
    for part in (
        "src",
        "reproduction",
        "tests",
        "docs",
        "examples",
        ".ci",
        ".github",
        "README.md",
        "LICENSE",
    ):
        check(part in parts, f"the sdist has no {part}")
    return wheel


def check(holds: bool, sentence: str) -> None:
    """End the script with a sentence unless something holds."""
    if not holds:
        sys.exit(sentence)


def needed_by(names: list[str]) -> list[Distribution]:
    """Packages with all that they need, extras aside, as far as they are installed here."""
    found: dict[str, Distribution] = {}
    while names:
        name = names.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another platform
            continue
        wanted = [line for line in found[name].requires or [] if "extra ==" not in line]
        names += [re.match(r"[\w.-]+", line)[0].lower() for line in wanted]  # type: ignore[index]
    return list(found.values())


def make_environment(folder: Path, wheel: Path) -> Path:
    """The python of a new environment with the wheel, torch and numpy, and nothing else."""
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    link(python, ["torch", "numpy", "safetensors", "filelock"])
    run(*pip, "check", cwd=folder)
    return python


def link(python: Path, names: list[str]) -> None:
    """Link to packages that are installed here, with all that they need: torch is large."""
    (place,) = (python.parents[1] / "lib").glob("python*/site-packages")
    for package in needed_by(names):
        tops = {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "/")}
        for top in tops:
            original = Path(str(package.locate_file(top)))
            if original.exists() and not (place / top).exists():
                (place / top).symlink_to(original)


def use(python: Path, folder: Path) -> None:
    """What a user does first."""
    neada = python.with_name("neada")
    version = re.search(
        r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M
    )
    assert version is not None
    check(run(neada, "--version", cwd=folder).split() == ["neada", version[1]], "another version")
    check("pip install 'neada[cli]'" in run(neada, "info", cwd=folder, code=2), "no hint at tyro")
    link(python, ["tyro", "tqdm"])
    check("solve" in run(neada, "--help", cwd=folder), "neada --help names no command")
    run(python, "-m", "neada", "solve", "mccormick", cwd=folder)
    run(neada, "train", "--data", "synthetic", "--max-calls", "20", cwd=folder)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", readme, re.DOTALL):
        printed = run(python, "-W", "error", "-c", code, cwd=folder).strip()
        check(not printed or f"It prints `{printed}`" in readme, f"the README prints {printed}")
    print(f"imported {run(python, '-c', IMPORT_ALL, cwd=folder).strip()} modules without extras")
    for arguments, extra in (
        (("train", "--data", "digits"), "data"),
        (("solve", "mccormick", "--plot", "a.png"), "plots"),
    ):
        said = run(neada, *arguments, cwd=folder, code=2)
        check(f"pip install 'neada[{extra}]'" in said, f"{arguments} says {said}")


def check_types(python: Path, folder: Path) -> None:
    """A user's script under mypy, which has to find the types of the installed package."""
    (folder / "script.py").write_text(USER_SCRIPT, encoding="utf-8")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--hide-error-codes")
    said = run(*mypy, "--python-executable", python, "script.py", cwd=folder, code=1)
    lines = re.findall(r"^script.py:\d+: (?:error|note: Revealed).*$", said, re.MULTILINE)
    for line, expected in zip(lines, EXPECTED, strict=False):
        check(line.startswith(f"script.py:{expected}"), f"mypy says: {said}")
    check(len(lines) == len(EXPECTED), f"mypy says: {said}")


def main() -> None:
    """Build, install, use."""
    wheel = build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = make_environment(folder, wheel)
        use(python, folder)
        check_types(python, folder)
    print("packaged:", *(path.name for path in sorted(DIST.iterdir())))


if __name__ == "__main__":
    main()
