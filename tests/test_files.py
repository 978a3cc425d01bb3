"""Files are whole or not there, and what was written is on the disk."""

import errno
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neada import files


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError, match="half way"), files.replacing(path) as file:
        file.write(b"new, but")
        raise RuntimeError("half way")
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_written_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    files.write_text(tmp_path / "ours", "text")
    (tmp_path / "theirs").write_text("text", encoding="utf-8")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_a_draft_is_finished_under_its_new_name_or_stays(tmp_path: Path) -> None:
    draft, path = tmp_path / "draft", tmp_path / "file"
    draft.write_bytes(b"rows, ")
    with pytest.raises(OSError, match="full"), files.replacing(path, draft=draft) as file:
        raise OSError("full")
    assert os.listdir(tmp_path) == ["draft"]
    with files.replacing(path, draft=draft) as file:
        file.seek(6)
        file.write(b"seal")
    assert path.read_bytes() == b"rows, seal"
    assert os.listdir(tmp_path) == ["file"]


def test_what_killed_writers_left_is_found(tmp_path: Path) -> None:
    writing = files.replacing(tmp_path / "one.pt")
    writing.__enter__()  # and never left
    (tmp_path / ".one.pt").touch()
    assert len(files.drafts(tmp_path, "one.pt")) == 1
    assert files.drafts(tmp_path, "two*") == []


@pytest.mark.parametrize(
    ("number", "matters"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False)]
)
def test_a_folder_that_fails_to_reach_the_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, matters: bool
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if matters:
        with pytest.raises(OSError, match=os.strerror(number)):
            files.sync_folder(tmp_path)
    else:
        files.sync_folder(tmp_path)


# A folder has one writer.

HOLDING = """
import sys, time
from pathlib import Path
from neada.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    """Another process that has the lock."""
    command = [sys.executable, "-c", HOLDING, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_told_which_process_is_at_work(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        said = f"{tmp_path} is in use by process {process.pid}: wait until it has ended, or use "
        for _ in range(2):
            with pytest.raises(files.FolderInUse, match=re.escape(said)), files.locked(tmp_path):
                pass
        process.kill()
    # A process that was killed holds nothing, whatever it left.
    assert os.listdir(tmp_path) == [".neada-lock"]
    with files.locked(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_the_lock_holds_within_a_process_too(tmp_path: Path) -> None:
    with files.locked(tmp_path):
        with pytest.raises(files.FolderInUse, match=f"process {os.getpid()}"):
            files.locked(tmp_path).__enter__()
        with files.locked(tmp_path / "inside"):
            pass
    with files.locked(tmp_path):
        pass


def test_a_lock_makes_its_folder_and_leaves_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), files.locked(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with files.locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "file").touch()
    assert os.listdir(tmp_path / "a" / "b") == ["file"]


def test_writers_that_come_and_go_never_meet(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom neada import files\n"
        "folder, done = Path(sys.argv[1]), 0\n"
        "while done < 100:\n"
        "    try:\n"
        "        with files.locked(folder):\n"
        "            (folder / 'mine').open('x').close()\n"
        "            (folder / 'mine').unlink()\n"
        "            done += 1\n"
        "    except files.FolderInUse: pass\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "folder")]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert not list(tmp_path.glob("folder/*"))


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_a_folder_that_another_writer_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    plain_mkdir, raised = Path.mkdir, []

    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        if len(raised) < 2:
            raised.append(path)
            raise error
        plain_mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with files.locked(tmp_path / "folder"):
        assert (tmp_path / "folder").is_dir()
    raised.clear()
    monkeypatch.setattr(files, "_TRIES", 2)
    with pytest.raises(error), files.locked(tmp_path / "other"):
        pass


def test_a_file_system_without_locks_is_said_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fail(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.warns(UserWarning, match="cannot be locked .*: let no other process write there"):
        files.locked(tmp_path).__enter__()


def test_the_lock_writes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content", encoding="utf-8")
    (tmp_path / ".neada-lock").symlink_to("precious")
    with pytest.raises(OSError), files.locked(tmp_path):
        pass
    assert (tmp_path / "precious").read_text(encoding="utf-8") == "content"


def test_only_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    draft = ".config.json.0123abcd.neada-tmp"
    others = [
        *(".config.json", ".config.json.0123abcd", ".config.json.bak.neada-tmp"),
        *(".bashrc.20241117", ".other.json.0123abcd.neada-tmp", "config.json.0123abcd.neada-tmp"),
    ]
    for name in (draft, *others):
        (tmp_path / name).touch()
    files.remove_drafts(tmp_path, ["config.json"])
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    (tmp_path / draft).mkdir()
    files.remove_drafts(tmp_path, ["config.json"])
    assert (tmp_path / draft).is_dir()


# JSON that nobody should have to trust.

ODD_JSON = {
    "long number": (b'{"a": ' + 400 * b"9" + b"}", "a number of 400 digits"),
    "very long number": (b'{"a": ' + 5000 * b"9" + b"}", "a number of 5,000 digits"),
    "brackets": (100_000 * b"[", "nested too deeply"),
    "braces": (100_000 * b'{"a":', "nested too deeply"),
    "closed brackets": (5000 * b"[" + 5000 * b"]", "nested too deeply"),
    "NaN": (b'{"a": NaN}', "NaN is not JSON"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is not JSON"),
    "large float": (b'{"a": 1e999}', "the number 1e999 is too large"),
    "twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "it has 'c' twice"),
    "bytes": (b'{"a": "\xff\xfe"}', "byte 7 is not of UTF-8 text"),
    "mark": (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
    "empty": (b"", "it is not JSON (Expecting value, line 1, column 1)"),
    "zeros": (bytes(100), "it is not JSON"),
    "cut": (b'{"a": 1', "it is not JSON"),
    "long name": (b'{"' + 9000 * b"a" + b'": 1, "' + 9000 * b"a" + b'": 1}', "twice"),
}


@pytest.mark.parametrize("kind", ODD_JSON)
def test_odd_json_is_one_sentence_with_the_file(kind: str, tmp_path: Path) -> None:
    content, words = ODD_JSON[kind]
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        files.read_json(path)
    said = str(caught.value)
    assert said.startswith(f"{path} cannot be read: ")
    assert said.isprintable() and len(said) < 400
    path.write_bytes(b"{}\n" + content + b"\n")
    with pytest.raises(ValueError, match="a line that is not JSON"):
        files.read_lines(path)


def test_json_that_is_no_file_or_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no room
    with pytest.raises(ValueError, match=r"it has 1,099,511,627,776 bytes"):
        files.read_json(path)
    with pytest.raises(ValueError, match=f"{path} is not a folder"):
        files.read_json(path / "config.json")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="not a regular file"):
        files.read_json(path)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "none.json")
    with pytest.raises(ValueError, match="null"):
        files.read_json(Path("a\0b"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    content = {"a": [1, -(2**63), 2**64 - 1, 1e308, -math.inf], "b": {"c": None, "d": "\U0001f600"}}
    files.write_json(tmp_path / "file.json", content)
    assert files.read_json(tmp_path / "file.json") == content
