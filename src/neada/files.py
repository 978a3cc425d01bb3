"""Files that are whole or not there: atomic writes, downloads, checksums, JSON with infinity."""

import contextlib
import errno
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

__all__ = [
    "DownloadError",
    "append_lines",
    "decode",
    "download",
    "drafts",
    "encode",
    "read_json",
    "read_lines",
    "replacing",
    "sha256",
    "sync",
    "sync_folder",
    "write_json",
    "write_text",
]


_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_TIMEOUT = 30.0
_MAX_DOWNLOAD = 2**26
_CHUNK = 2**18


@contextlib.contextmanager
def replacing(path: Path, draft: Path | None = None) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends well, and vanishes otherwise.

    It is on disk (fsync) before it gets the name, so a crash leaves the old file or the new one.

    Args:
        path: The name it gets.
        draft: An existing file in the same folder to be finished in place of a new one; it stays
            if the block fails.
    """
    name = draft or path.with_name(f".{path.name}.{os.urandom(4).hex()}")
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


def drafts(folder: Path, pattern: str) -> list[Path]:
    """What killed writers left half-written of files whose names match a pattern."""
    return list(folder.glob(f".{pattern}.????????"))


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
    """Read what `write_json` wrote.

    Raises:
        ValueError: The file is not JSON.
    """
    return decode(json.loads(path.read_text()))


def append_lines(path: Path, rows: Iterable[Any]) -> None:
    """Append one JSON line per row."""
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(encode(row), allow_nan=False) + "\n")


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
        return [decode(json.loads(line)) for line in content[:num_bytes].splitlines()]
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
    """Write what one of the addresses holds to a file, atomically.

    Args:
        urls: Addresses of the same file, tried in turn.
        path: Where to; its folder is made if it is missing.
        checksum: The SHA-256 that the content must have.

    Raises:
        DownloadError: No address gave the file, or it could not be written. Nothing is left behind.
    """
    failures = []
    for url in urls:
        try:
            _download(url, path, checksum)
        except DownloadError as failure:
            failures.append(f"{url}: {failure}")
        except OSError as error:
            raise DownloadError(f"{path} cannot be written: {error.strerror or error}") from error
        else:
            return
    raise DownloadError(
        f"{path.name} could not be downloaded ({'; '.join(failures)}); check the network, or "
        "fetch the file yourself and give its folder"
    )


def _download(url: str, path: Path, checksum: str) -> None:
    import http.client  # both are slow to import, and seldom needed
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "neada"})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise DownloadError(reason) from error
    with response:
        path.parent.mkdir(parents=True, exist_ok=True)
        received, digest = 0, hashlib.sha256()
        with replacing(path) as file:
            while True:
                try:
                    piece = response.read(_CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    raise DownloadError(
                        f"it broke off after {received:,} bytes ({error})"
                    ) from error
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
