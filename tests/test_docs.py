"""The pages of the documentation agree with the code."""

import functools
import re
import shlex
from pathlib import Path

import pytest

import neada
from neada.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = Path(neada.__file__).parent
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("api/*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
# Python code, and what it prints in the block or the sentence below it.
BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n|\nIt prints `(.*?)`)?", re.DOTALL | re.M
)
COMMAND = re.compile(r"^    (neada (?:.*\\\n)*.*)$", re.M)


def examples_of(text: str) -> list[list[tuple[str, str]]]:
    """The examples of a page, each with the blocks that continue it."""
    found: list[list[tuple[str, str]]] = []
    for code, block, sentence in BLOCK.findall(text):
        printed = block or (sentence and f"{sentence}\n")
        if code.startswith("# goes on\n"):
            found[-1].append((code, printed))
        else:
            found.append([(code, printed)])
    return found


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(blocks, id=f"{page.stem}-{number}")
        for page, text in TEXTS.items()
        for number, blocks in enumerate(examples_of(text), start=1)
    ],
)
def test_every_example_runs_alone_and_prints_what_the_page_shows(
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
        assert not output or printed == output


@pytest.mark.parametrize(
    "page", [p for p in PAGES if COMMAND.search(TEXTS[p])], ids=lambda p: p.stem
)
def test_the_commands_have_the_options_that_pages_use(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, command in list(COMMANDS.items()):
        monkeypatch.setitem(COMMANDS, name, functools.wraps(command)(lambda *_, **__: 0))
    monkeypatch.setattr("neada.cli.train.train", COMMANDS["train"])
    for command in COMMAND.findall(TEXTS[page]):
        _, *arguments = shlex.split(command.replace("\\\n", " "), comments=True)
        assert main(arguments) == 0, (command, capsys.readouterr().err)


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    modules = (neada.optim, neada.sets, neada.steppers, neada.robust, neada.attacks, neada.data)
    for module in (*modules, neada.models, neada.training, neada.estimators):
        page = TEXTS[DOCS / "api" / f"{module.__name__.split('.')[1]}.md"]
        for name in module.__all__:
            assert re.search(rf"{module.__name__}\.{name}\b", page), name


def test_every_module_and_command_is_named() -> None:
    for path in SOURCE.iterdir():
        name = f"{path.name}/" if path.is_dir() else path.name
        is_module = name.endswith(("/", ".py")) and not name.startswith("__")
        assert not is_module or f" {name} " in TEXTS[DOCS / "architecture.md"], name
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", TEXTS[ROOT / "README.md"]):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_version_is_the_same_everywhere() -> None:
    for file, line in (
        ("pyproject.toml", f'version = "{neada.__version__}"'),
        ("CITATION.cff", f"version: {neada.__version__}"),
        ("CHANGELOG.md", f"## [{neada.__version__}]"),
    ):
        assert f"\n{line}" in (ROOT / file).read_text(encoding="utf-8"), file
