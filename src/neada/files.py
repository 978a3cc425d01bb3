"""Files that are whole or not there: atomic writes, checksums, JSON that knows infinity."""

import contextlib
import hashlib
import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

__all__ = [
    "append_lines",
    "decode",
    "encode",
    "read_json",
    "read_lines",
    "replacing",
    "sha256",
    "write_json",
    "write_text",
]


_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends well, and vanishes otherwise.

    It is on disk (fsync) before it gets the name, so a crash leaves the old file or the new one.
    """
    name = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with name.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink()
        raise
    _sync_folder(path.parent)


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


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
