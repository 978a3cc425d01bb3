"""The command line among damaged files, closed streams and odd arguments: a sentence, exit 2."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neada import experiments
from neada.cli import main
from neada.runs import RunFolder

LONG = 300 * "a"
TRAIN = ["train", "--data", "synthetic", "--max-calls", "20", "--eval-eps", "0.3", "--quiet"]


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says: one short line that can be printed, and exit code 2."""
    capsys.readouterr()
    assert main(list(arguments)) == 2, arguments
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.removesuffix("\n")
    assert line.startswith("neada: ") and line.isprintable() and len(line) < 1100
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAIN, "--out", str(folder)]) == 0
    return folder


CONFIGS = {
    "a long number": b'{"gamma": ' + 400 * b"9" + b"}",
    "a number of twenty digits": b'{"seed": ' + 20 * b"9" + b"}",
    "a large number": b'{"gamma": 1e999}',
    "many brackets": 100_000 * b"[",
    "many closed brackets": 900 * b"[" + 900 * b"]",
    "a deep value": b'{"gamma": ' + 900 * b"[" + 900 * b"]" + b"}",
    "NaN": b'{"gamma": NaN}',
    "infinity": b'{"gamma": Infinity}',
    "the word for infinity": b'{"gamma": "inf"}',
    "a name twice": b'{"gamma": 1.3, "gamma": 1.3}',
    "bytes": bytes(range(256)),
    "a mark of order": b'\xef\xbb\xbf{"gamma": 1.3}',
    "nothing": b"",
    "a list": b"[]",
    "a number": b"5",
    "a text": b'"gamma"',
    "null": b"null",
    "other names": b'{"\\u0000\\u001b[31m' + 5000 * b"x" + b'": 1}',
    "a long text": b'{"stop": "' + 100_000 * b"x" + b'"}',
    "numbers in place of text": b'{"data": 5, "model": []}',
    "a null character": b'{"data": "a\\u0000b.npz"}',
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_odd_config_is_refused_by_every_command_that_reads_it(
    kind: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained / "config.json"
    good = path.read_bytes()
    try:
        path.write_bytes(CONFIGS[kind])
        before = everything_in(trained)
        for command in (
            ["attack", str(trained), "--samples", "9"],
            ["certify", str(trained), "--samples", "9"],
            ["train", "--out", str(trained), "--resume", "--quiet"],
        ):
            refusal(capsys, *command)
        assert everything_in(trained) == before
    finally:
        path.write_bytes(good)
    assert main(["train", "--out", str(trained), "--resume", "--quiet"]) == 0


def test_a_config_that_is_a_folder_or_endless_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").mkdir()
    said = refusal(capsys, "attack", str(tmp_path))
    assert f"{tmp_path / 'config.json'} cannot be read: it is not a regular file" in said
    assert "regular file" in refusal(capsys, *TRAIN, "--resume", "--out", str(tmp_path))
    (tmp_path / "config.json").rmdir()
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    assert "bytes, and at most" in refusal(capsys, "attack", str(tmp_path))


def test_a_reproduction_with_an_odd_config_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = experiments.make("quadratic")
    shorter = [
        dataclasses.replace(config, max_calls=tuple((ratio, 40) for ratio, _ in config.max_calls))
        for config in module.configs("quick")
    ]
    monkeypatch.setattr(module, "configs", lambda scale, seeds=None: shorter)
    out = tmp_path / "out"
    arguments = ["reproduce", "quadratic", "--jobs", "1", "--quiet", "--out", str(out)]
    assert main(arguments) == 0
    runs = sorted(out.glob("quadratic/runs/*"))
    configs = [*CONFIGS.values()][: len(runs)]
    for run, content in zip(runs, configs, strict=False):
        (run / "config.json").write_bytes(content)
    capsys.readouterr()
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert said.count(" was run again: ") == said.count("\n") == len(configs)
    assert all(RunFolder(run).config()["max_calls"] for run in runs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--out", ""], "--out is empty: give a path"),
        (["reproduce", "--out", ""], "--out is empty: give a path"),
        (["report", ""], "DIR is empty: give a path"),
        (["attack", ""], "RUN is empty: give a path"),
        (["data", "digits", "--sheet", ""], "--sheet is empty: give a path"),
        (["solve", "mccormick", "--plot", ""], "--plot is empty: give a path"),
        (["train", "--data", "mnist", "--data-folder", ""], "--data-folder is empty"),
        (["train", "--out", "a\0b"], "--out must be a path without null characters"),
        (["train", "--data", "a\0b.npz", "--out", "new"], "a path without null characters"),
        (["train", "--out", 5000 * "a"], "--out is too long, at most 255 bytes between two"),
        (["train", "--out", 2500 * "a/"], "--out is too long, at most 255 bytes between two"),
        (["train", "--data-folder", LONG], "--data-folder is too long"),
        (["train", "--data", f"{LONG}.npz", "--out", "new"], "is too long"),
        (["reproduce", "--out", f"missing/{LONG}"], "--out is too long"),
        (["report", LONG], "DIR is too long"),
        (["attack", LONG], "RUN is too long"),
        (["certify", 128 * "ä"], "RUN is too long"),
        (["data", "digits", "--sheet", f"{LONG}.png"], "--sheet is too long"),
        (["data", "digits", "--sheet", f"{LONG[:245]}.png"], "--sheet takes names of at most 240"),
        (["solve", "mccormick", "--plot", f"{LONG}.png"], "--plot is too long"),
        (["solve", "mccormick", "--plot", f"{LONG[:245]}.png"], "--plot takes names of at most"),
        (
            ["attack", "run", "--eps", "1e308"],
            "--eps must be a number at least 0 and at",
        ),
        (["reproduce", "quadratic", "--jobs", "100000000000"], "--jobs must be a whole number at"),
        (["train", "--threads", "1000000000"], "--threads must be a whole number at least 1 and"),
        (["train", "--max-call", "5"], "unrecognized arguments: --max-call 5; did you mean --max-"),
        (["train", "--max-call=5"], "did you mean --max-calls?"),
        (["reproduce", "--sead", "1"], "did you mean --seeds?"),
        (["attack", "run", "--step", "5"], "did you mean --steps?"),
        (["--versoin", "train"], "did you mean --version?"),
        (["train", "--zzzzzzzz"], "unrecognized arguments: --zzzzzzzz (see `neada train --help`)"),
        (["train", "--checkpoint-seconds", "nan"], "--checkpoint-seconds must be a number greater"),
        (["train", "--gamma", 99_999 * "9"], "--gamma must be a number greater than 0 and finite"),
        (["train", "--seed", 99_999 * "9"], "--seed must be a whole number"),
        (["train", "--gamma", "\x1b[31m\n\n" + 9999 * "x"], "got '\\x1b[31m\\n\\nxxx"),
        (["\udcff" * 9], "COMMAND must be one of"),
    ],
)
def test_odd_arguments_are_refused_before_anything_is_written(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refusal(capsys, *arguments)
    assert os.listdir(tmp_path) == []


def test_a_variable_that_is_too_long_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEADA_DATA", LONG)
    assert f"File name too long: give a shorter one than {LONG}" in refusal(capsys, "data", "mnist")


def test_names_that_just_fit_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"{LONG[:236]}.png"
    assert main(["data", "digits", "--sheet", f"{LONG[:255]}/{name}"]) == 0
    assert os.listdir(LONG[:255]) == [name]


def test_figures_are_drawn_whatever_is_set_for_windows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "neada", "solve", "mccormick", "--quiet", "--plot", "p.png"]
    environment = {**os.environ, "MPLBACKEND": "nosuch"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--out", "file"],
        ["train", "--out", "file", "--resume"],
        ["train", "--out", "file/below", "--overwrite"],
        ["reproduce", "quadratic", "--out", "file"],
        ["report", "file"],
        ["attack", "file"],
        ["certify", "file"],
        ["data", "mnist", "--data-folder", "file"],
        ["train", "--data", "fashion-mnist", "--data-folder", "file", "--out", "new"],
        ["data", "digits", "--sheet", "file/sheet.png"],
        ["solve", "mccormick", "--plot", "file/plot.svg"],
        ["data", "digits", "--sheet", "folder.png"],
        ["solve", "mccormick", "--plot", "folder.png"],
        ["data", "folder.npz"],
    ],
)
def test_a_file_in_place_of_a_folder_is_refused(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("precious")
    for folder in ("folder.png", "folder.npz"):
        Path(folder).mkdir()
    refusal(capsys, *arguments)
    assert Path("file").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.npz", "folder.png"]
    assert os.listdir("folder.png") == os.listdir("folder.npz") == []


SHELL = {
    "neada methods >&-": 0,
    "neada methods 2>&-": 0,
    "neada methods <&- >&- 2>&-": 0,
    "neada problems | true": 0,
    "neada --help | true": 0,
    "neada --help >&-": 0,
    "neada nothing 2>&-": 2,
    "neada nothing 2>/dev/full": 2,
    "neada methods >/dev/full": 1,
}


def test_closed_streams_are_no_traceback() -> None:
    neada = f'neada() {{ "{sys.executable}" -m neada "$@"; }}; set -o pipefail; '
    for command, code in SHELL.items():
        if "/dev/full" in command and not Path("/dev/full").exists():
            continue
        done = subprocess.run(
            ["bash", "-c", neada + command], capture_output=True, text=True, check=False
        )
        words = "neada: No space left on device; nothing that was finished is lost\n"
        assert done.stderr == (words if code == 1 else ""), command
        assert done.returncode == code, command


@pytest.mark.parametrize("arguments", [TRAIN, ["reproduce", "lemma", "--jobs", "2", "--quiet"]])
def test_work_goes_on_without_streams(arguments: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [
            *("bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash"),
            *(sys.executable, "-m", "neada", *arguments, "--out", str(out)),
        ],
        check=False,
    )
    assert done.returncode == 0
    # Nothing that was meant for a stream has gone into a file.
    assert all(RunFolder(path.parent).rows() for path in out.rglob("metrics.jsonl"))
    assert list(out.rglob("result.json"))


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii:strict", "\\xe4"), ("utf-8:strict", "\N{LATIN SMALL LETTER A WITH DIAERESIS}")],
)
def test_a_path_that_cannot_be_printed_is_escaped(
    encoding: str, shown: str, tmp_path: Path
) -> None:
    name = b"\xc3\xa4\xff.svg"  # the last one is no character in any encoding here
    done = subprocess.run(
        [sys.executable, "-m", "neada", "solve", "quadratic", "--quiet", "--plot", name],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0 and done.stderr == b""
    assert f"plot: {shown}\\udcff.svg" in done.stdout.decode()
    assert os.listdir(os.fsencode(tmp_path)) == [name]


def test_what_another_library_says_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    from neada.cli.arguments import complain

    complain("bytes \x00\xff\n" + 10_000 * "x")
    said = capsys.readouterr().err
    assert said.startswith("neada: bytes \\x00ÿ xxx") and said.endswith("...\n")
    assert len(said) < 1100


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK"),
        ({"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT"),
    ],
)
def test_odd_variables_of_a_launch_are_one_sentence(
    variables: dict[str, str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    assert main(["train", "--data", "synthetic", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"neada: the environment variable {name} must be a whole number, got '")
    assert said.count("\n") == 1 and not (tmp_path / "run").exists()
