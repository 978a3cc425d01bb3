"""The pages of the documentation agree with the code."""

import functools
import re
import shlex
from pathlib import Path

import pytest

import neada
from neada.cli.main import COMMANDS, main
from neada.optim import PlayerOptimizer

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = Path(neada.__file__).parent
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("api/*.md")])
COMMAND = re.compile(r"^    (neada (?:.*\\\n)*.*)$", re.MULTILINE)
SHELL_PAGES = [
    page
    for page in (ROOT / "README.md", *PAGES)
    if COMMAND.search(page.read_text(encoding="utf-8"))
]


def test_every_optimizer_is_in_the_table_and_documented() -> None:
    page = (DOCS / "optimizers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.M)
    table = dict(rows)
    for name in neada.optim.__all__:
        optimizer = getattr(neada.optim, name)
        is_method = isinstance(optimizer, type) and issubclass(optimizer, PlayerOptimizer)
        if is_method and optimizer is not PlayerOptimizer:
            assert table.pop(name)
            assert "Needs to know: " in optimizer.__doc__
            assert "Guarantees: " in optimizer.__doc__
    assert set(table) == {"parameter_free_sgd"}


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    modules = (neada.optim, neada.sets, neada.steppers, neada.robust, neada.attacks, neada.data)
    for module in (*modules, neada.models, neada.training, neada.estimators):
        page = (DOCS / "api" / f"{module.__name__.split('.')[1]}.md").read_text(encoding="utf-8")
        for name in module.__all__:
            assert re.search(rf"{module.__name__}\.{name}\b", page), name


def files_in_the_tree(page: str) -> set[str]:
    """The files that a tree of indented lines names, by their paths below `src/neada`."""
    block = page.split("    src/neada/\n")[1].split("\n    reproduction/")[0]
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
    tree = files_in_the_tree((DOCS / "architecture.md").read_text(encoding="utf-8"))
    packages = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    paths = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    modules = {path for path in paths if not path.endswith("/__init__.py")}
    assert tree == packages | modules


def test_the_short_tree_has_every_package() -> None:
    tree = files_in_the_tree((ROOT / "README.md").read_text(encoding="utf-8"))
    entries = {path.name + "/" * path.is_dir() for path in SOURCE.iterdir()}
    assert tree == {name for name in entries if not name.startswith("__")} - {"py.typed"}


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {neada.__version__}\n" in (ROOT / "CITATION.cff").read_text(
        encoding="utf-8"
    )
    assert f"\n## [{neada.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# A block of Python, and the block right below it that says what is printed.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def examples_of(page: Path) -> list[list[tuple[str, str]]]:
    """The examples of a page, each with the blocks that go on with it."""
    found: list[list[tuple[str, str]]] = []
    for code, output in BLOCK.findall(page.read_text(encoding="utf-8")):
        if code.startswith("# goes on\n"):
            found[-1].append((code, output))
        else:
            found.append([(code, output)])
    return found


EXAMPLES = [
    pytest.param(blocks, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, blocks in enumerate(examples_of(page), start=1)
]


@pytest.mark.parametrize("blocks", EXAMPLES)
def test_every_example_runs_alone_and_prints_what_the_page_says(
    blocks: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, output in blocks:
        exec(compile(code, "example", "exec"), names)
        printed = capsys.readouterr().out
        if output:
            assert printed == output


def test_no_block_of_code_is_left_out() -> None:
    kinds = {
        kind
        for page in PAGES
        for kind in re.findall(r"^ *```([^{\s]\S*)", page.read_text(encoding="utf-8"), re.M)
    }
    assert kinds == {"python", "text"}


@pytest.mark.parametrize("page", SHELL_PAGES, ids=lambda page: page.stem)
def test_the_commands_have_the_options_that_pages_use(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, command in list(COMMANDS.items()):
        monkeypatch.setitem(COMMANDS, name, functools.wraps(command)(lambda *_, **__: 0))
    monkeypatch.setattr("neada.cli.train.train", COMMANDS["train"])
    for command in COMMAND.findall(page.read_text(encoding="utf-8")):
        _, *arguments = shlex.split(command.replace("\\\n", " "), comments=True)
        assert main(arguments) == 0, (command, capsys.readouterr().err)
