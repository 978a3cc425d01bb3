"""The pages of the documentation agree with the code."""

import re
import shlex
from pathlib import Path

import pytest

import neada
from neada.cli.main import make_parser
from neada.optim import PlayerOptimizer

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = Path(neada.__file__).parent
SHELL_PAGES = (ROOT / "README.md", DOCS / "training.md", DOCS / "command-line.md")


def test_the_table_says_what_each_optimizer_says_of_itself() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (DOCS / "optimizers.md").read_text(), re.M)
    table = dict(rows)
    for name in neada.optim.__all__:
        optimizer = getattr(neada.optim, name)
        is_method = isinstance(optimizer, type) and issubclass(optimizer, PlayerOptimizer)
        if is_method and optimizer is not PlayerOptimizer:
            assert table.pop(name) == optimizer.needs_to_know
            assert "Needs to know: " in optimizer.__doc__
            assert "Guarantees: " in optimizer.__doc__
    assert set(table) == {"parameter_free_sgd"}


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    modules = (neada.optim, neada.sets, neada.steppers, neada.robust, neada.attacks, neada.data)
    for module in (*modules, neada.models, neada.training, neada.estimators):
        page = (DOCS / "api" / f"{module.__name__.split('.')[1]}.md").read_text()
        for name in module.__all__:
            assert re.search(rf"{module.__name__}\.{name}\b", page), name


def files_in_the_tree(page: str) -> set[str]:
    """The files that a tree of indented lines names, by their paths below `src/neada`."""
    block = page.split("    src/neada/\n")[1].split("\n    tests/")[0]
    found, folder = set(), ""
    for line in block.splitlines():
        match = re.match(r"( *)(\S+)  +\S", line)
        assert match is not None, line
        indent, name = match.groups()
        if name.endswith("/"):
            folder = name
        found.add(folder + name if len(indent) == 8 else name)
    return found


def test_the_tree_has_every_file() -> None:
    tree = files_in_the_tree((DOCS / "architecture.md").read_text())
    packages = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    paths = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    modules = {path for path in paths if not path.endswith("/__init__.py")}
    assert tree == packages | modules


def test_the_short_tree_has_every_package() -> None:
    tree = files_in_the_tree((ROOT / "README.md").read_text())
    entries = {path.name + "/" * path.is_dir() for path in SOURCE.iterdir()}
    assert tree == {name for name in entries if not name.startswith("__")} - {"py.typed"}


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {neada.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{neada.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


PAGES = ("index", "minimax", "constrained", "sets", "training", "estimators")


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
    exec(compile("\n".join(blocks), f"{name}.md", "exec"), {})


@pytest.mark.parametrize("page", SHELL_PAGES, ids=lambda page: page.stem)
def test_the_commands_have_the_flags_that_pages_use(page: Path) -> None:
    commands = re.findall(r"^    (neada (?:.*\\\n)*.*)$", page.read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        _, *arguments = shlex.split(command.replace("\\\n", " "), comments=True)
        make_parser().parse_args(arguments)
