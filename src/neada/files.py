"""Files that are whole or not there, folders with one writer, downloads, JSON with infinity."""

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import platform
import re
import stat
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from neada.checks import printable

__all__ = [
    "DownloadError",
    "FolderInUse",
    "append_lines",
    "decode",
    "download",
    "draft_pattern",
    "drafts",
    "encode",
    "locked",
    "read_json",
    "read_lines",
    "remove_drafts",
    "replacing",
    "sha256",
    "sync",
    "sync_folder",
    "write_json",
    "write_text",
]


_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_MAX_JSON = 2**24
_MAX_DIGITS = 20
_TIMEOUT = 30.0
_MAX_SECONDS = 900.0
_MAX_DOWNLOAD = 2**26
_CHUNK = 2**18
_LOCK = ".neada-lock"
_DRAFT = ".neada-tmp"
_TRIES = 1000
"""To lock a folder that others make and remove at the same time."""


@contextlib.contextmanager
def replacing(path: Path, draft: Path | None = None) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends well, and vanishes otherwise.

    It is on disk (fsync) before it gets the name, so a crash leaves the old file or the new one.

    Args:
        path: The name it gets.
        draft: An existing file in the same folder to be finished in place of a new one; it stays
            if the block fails.
    """
    name = draft or path.with_name(f".{path.name}.{os.urandom(4).hex()}{_DRAFT}")
    try:
        with name.open("r+b" if draft else "xb") as file:
            yield file
            sync(file)
        os.replace(name, path)
    except BaseException:
        if draft is None:
            with contextlib.suppress(OSError):
                name.unlink()
        raise
    sync_folder(path.parent)


def draft_pattern(pattern: str) -> str:
    """The glob pattern of the temporary files of files whose names match a pattern."""
    return f".{pattern}.{8 * '[0-9a-f]'}{_DRAFT}"


def drafts(folder: Path, pattern: str) -> list[Path]:
    """Temporary files left by killed processes for files whose names match a pattern."""
    return list(folder.glob(draft_pattern(pattern)))


def remove_drafts(folder: Path, patterns: Iterable[str]) -> None:
    """Remove the temporary files that killed processes left in a folder; requires its lock.

    Args:
        folder: The folder.
        patterns: The names of the files that are written there, as glob patterns.
    """
    for pattern in patterns:
        for left in drafts(folder, pattern):
            if left.is_file():
                left.unlink(missing_ok=True)


class FolderInUse(ValueError):  # noqa: N818 (what has happened)
    """Another process, or this one already, writes in a folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only writer of a folder in the block.

    The lock is the system's, on a small file in the folder: it ends with its process, however that
    ends, and holds among threads too. The folder is made if it is missing, and removed again if
    the block leaves nothing in it. On a file system without locks there is a warning, and nobody
    is kept out; on NFS the server holds the lock for all machines.

    Args:
        folder: Which one; folders inside it are not locked.

    Raises:
        FolderInUse: Somebody else has it; the sentence says which process, where that is known.
        OSError: The folder cannot be made, or not be written to.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    path = folder / _LOCK
    try:
        handle = _acquire(path)
        try:
            yield
        finally:
            _release(path, handle)
    finally:
        for place in made:
            with contextlib.suppress(OSError):  # it has something in it
                place.rmdir()


def _acquire(path: Path) -> int:
    """An open file that holds the lock, with the number of this process in it."""
    for number in range(1, _TRIES + 1):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except (FileExistsError, FileNotFoundError):
            if number == _TRIES:
                raise
            continue  # the last writer has just removed an empty folder
        try:
            _lock(path, handle)
            if _is_at(path, handle):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()} {platform.node()}\n".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise FolderInUse(f"{path.parent} is in use by several processes: use another folder")


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file still has its name: the last writer may have removed it since."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _lock(path: Path, handle: int) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            # A byte far behind the content, which others then can read.
            os.lseek(handle, 2**20, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            raise FolderInUse(
                f"{path.parent} is in use by {_owner(handle)}: wait until it has ended, or use "
                "another folder"
            ) from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        warnings.warn(
            f"{path.parent} cannot be locked ({error.strerror}): let no other process write there",
            stacklevel=2,
        )


def _owner(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    found = re.fullmatch(r"(\d{1,10}) ([\w.-]*)\n", os.read(handle, 300).decode(errors="replace"))
    if found is None:  # it is just being written
        return "another process"
    place = "" if found[2] == platform.node() else f" on {found[2]}"
    return f"process {found[1]}{place}"


def _release(path: Path, handle: int) -> None:
    try:
        if _is_at(path, handle):  # else the file is that of another writer
            path.unlink()
    except OSError:
        pass  # Windows removes no open file; or the folder is gone
    finally:
        os.close(handle)


def sync(file: IO[bytes]) -> None:
    """Bring what was written to an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make new, changed and removed names in a folder durable, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows, or a folder that may not be listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without such a sync
            raise
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically; non-finite numbers become the strings "inf", "-inf", "nan"."""
    write_text(path, json.dumps(encode(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote, from a file that need not be trusted.

    Raises:
        ValueError: The file is no such JSON; the sentence names it.
        FileNotFoundError: There is none.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_size > _MAX_JSON:
            raise ValueError(f"it has {status.st_size:,} bytes, and at most {_MAX_JSON:,} are read")
        return _parse(path.read_bytes())
    except NotADirectoryError:
        raise ValueError(f"{path} cannot be read: {path.parent} is not a folder") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {printable(str(error))}") from error


def _parse(content: bytes) -> Any:
    """JSON as this module writes it, which is less than Python reads."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not of UTF-8 text") from None
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark")
    try:
        parsed = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_whole_number,
            parse_float=_finite_number,
            object_pairs_hook=_object,
        )
        return decode(parsed)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is not JSON ({error.msg}, {place})") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f'{text} is not JSON: it would be written as "{float(text)}"')


def _whole_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"it has a number of {len(text):,} digits")
    return int(text)


def _finite_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {printable(text, 40)} is too large")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {printable(twice, 40)!r} twice")
    return found


def append_lines(path: Path, rows: Iterable[Any]) -> bytes:
    """Append one JSON line per row, and return what was appended."""
    lines = [json.dumps(encode(row), allow_nan=False) + "\n" for row in rows]
    content = "".join(lines).encode()
    with path.open("ab") as file:
        file.write(content)
    return content


def read_lines(path: Path, num_bytes: int | None = None) -> list[Any]:
    """The rows of a JSON lines file, or of its first so many bytes.

    Raises:
        ValueError: The file is shorter, or a line is not JSON.
    """
    content = path.read_bytes()
    if num_bytes is not None and len(content) < num_bytes:
        raise ValueError(
            f"{path} is shorter than it was ({len(content)} of {num_bytes} bytes): put it back, or "
            "start again"
        )
    try:
        return [_parse(line) for line in content[:num_bytes].splitlines()]
    except ValueError as error:
        raise ValueError(
            f"{path} has a line that is not JSON: put it back as it was, or start again"
        ) from error


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode(content: Any) -> Any:
    """The same content in standard JSON, which has no word for infinity.

    Example:
        >>> encode({"a": [1.0, float("inf")]})
        {'a': [1.0, 'inf']}
    """
    if isinstance(content, dict):
        return {key: encode(entry) for key, entry in content.items()}
    if isinstance(content, list | tuple):
        return [encode(entry) for entry in content]
    if isinstance(content, float) and not math.isfinite(content):
        return repr(content)
    return content


def decode(content: Any) -> Any:
    """Undo `encode`; the strings "inf", "-inf" and "nan" are numbers here."""
    if isinstance(content, dict):
        return {key: decode(entry) for key, entry in content.items()}
    if isinstance(content, list):
        return [decode(entry) for entry in content]
    if isinstance(content, str):
        return _NON_FINITE.get(content, content)
    return content


class DownloadError(Exception):
    """Why a file could not be downloaded, and what to do."""


def download(urls: Iterable[str], path: Path, checksum: str) -> None:
    """Write what one of the addresses holds to a file, atomically; takes at most 15 minutes.

    Args:
        urls: Addresses of the same file, tried in turn.
        path: Where to; its folder is made if it is missing.
        checksum: The SHA-256 that the content must have.

    Raises:
        DownloadError: No address gave the file in time, or it could not be written. Nothing is
            left behind.
        FolderInUse: Another process downloads to that folder.
    """
    failures = []
    deadline = time.monotonic() + _MAX_SECONDS
    try:
        with locked(path.parent):
            remove_drafts(path.parent, [glob.escape(path.name)])
            for url in urls:
                try:
                    return _download(url, path, checksum, deadline)
                except DownloadError as failure:
                    failures.append(f"{url}: {failure}")
    except OSError as error:
        raise DownloadError(f"{path} cannot be written: {error.strerror or error}") from error
    raise DownloadError(
        f"{path.name} could not be downloaded ({'; '.join(failures)}); check the network, or "
        "fetch the file yourself and give its folder"
    )


def _download(url: str, path: Path, checksum: str, deadline: float) -> None:
    import http.client  # both are slow to import, and seldom needed
    import urllib.request

    too_slow = DownloadError(f"it was not done within {_MAX_SECONDS:g} seconds")
    if time.monotonic() > deadline:
        raise too_slow
    request = urllib.request.Request(url, headers={"User-Agent": "neada"})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        reason = printable(f"{error.code} {error.reason}")
        raise DownloadError(f"the server says {reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise DownloadError(printable(reason)) from error
    with response:
        received, digest = 0, hashlib.sha256()
        with replacing(path) as file:
            while True:
                try:
                    piece = response.read1(_CHUNK)  # what is there, however little
                except (OSError, http.client.HTTPException) as error:
                    raise DownloadError(
                        f"it broke off after {received:,} bytes ({printable(str(error))})"
                    ) from error
                if time.monotonic() > deadline:
                    raise too_slow
                if not piece:
                    break
                received += len(piece)
                if received > _MAX_DOWNLOAD:
                    raise DownloadError(f"it is longer than {_MAX_DOWNLOAD:,} bytes")
                digest.update(piece)
                file.write(piece)
            announced = response.headers.get("Content-Length", "")
            if announced.isdecimal() and received < int(announced):
                raise DownloadError(f"it broke off after {received:,} of {int(announced):,} bytes")
            if digest.hexdigest() != checksum:
                raise DownloadError("the content has the wrong checksum")
