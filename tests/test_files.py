"""Files are whole or not there, and what was written is on the disk."""

import errno
import os
from pathlib import Path

import pytest

from neada import files


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half way"), files.replacing(path) as file:
        file.write(b"new, but")
        raise RuntimeError("half way")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_written_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    files.write_text(tmp_path / "ours", "text")
    (tmp_path / "theirs").write_text("text")
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
