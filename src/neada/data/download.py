"""Fetch a file, or nothing: it appears under its name only when its checksum is right."""

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from neada.data.dataset import DataError

__all__ = ["fetch"]

_TIMEOUT = 30.0
_MAX_BYTES = 2**26
_CHUNK = 2**18


def fetch(urls: Iterable[str], target: Path, sha256: str) -> None:
    """Write what one of the addresses holds to a file, atomically.

    Args:
        urls: Addresses of the same file, tried in turn.
        target: Where to; its folder is made if it is missing.
        sha256: The checksum that the content must have.

    Raises:
        DataError: no address gave the file, or it could not be written. Nothing is left behind.
    """
    failures = []
    for url in urls:
        try:
            _fetch_one(url, target, sha256)
        except _FetchError as failure:
            failures.append(f"{url}: {failure}")
        except OSError as error:
            raise DataError(f"{target} cannot be written: {error.strerror or error}") from error
        else:
            return
    raise DataError(
        f"{target.name} could not be downloaded ({'; '.join(failures)}); check the network, or "
        "fetch the file yourself and give its folder"
    )


class _FetchError(Exception):
    """Why one address did not give the file."""


def _fetch_one(url: str, target: Path, sha256: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "neada"})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise _FetchError(f"the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _FetchError(str(getattr(error, "reason", error)) or type(error).__name__) from error
    with response:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                for piece in _pieces(response, sha256):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def _pieces(response: http.client.HTTPResponse, sha256: str) -> Iterable[bytes]:
    """The content piece by piece; fails at its end unless it is complete and the right one."""
    announced = response.headers.get("Content-Length")
    digest = hashlib.sha256()
    received = 0
    while True:
        try:
            piece = response.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _FetchError(f"it broke off after {received:,} bytes ({error})") from error
        if not piece:
            break
        received += len(piece)
        if received > _MAX_BYTES:
            raise _FetchError(f"it is longer than {_MAX_BYTES:,} bytes")
        digest.update(piece)
        yield piece
    if announced is not None and announced.isdecimal() and received < int(announced):
        raise _FetchError(f"it broke off after {received:,} of {int(announced):,} bytes")
    if digest.hexdigest() != sha256:
        raise _FetchError("the content has the wrong checksum")
