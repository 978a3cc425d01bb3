"""Damage to a file: flipped bits, lost and added parts, and something else in its place."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = ["DAMAGE", "hurt_bytes"]


def hurt_bytes(content: bytes, draw: random.Random) -> bytes:
    """The same content with one of the kinds of damage that leave a file there."""
    return draw.choice([_flip, _digit, _cut, _grow, _zero, _swap])(content, draw)


def _flip(content: bytes, draw: random.Random) -> bytes:
    hurt = bytearray(content or b"\0")
    for _ in range(draw.choice((1, 1, 1, 8))):
        hurt[draw.randrange(len(hurt))] ^= 1 << draw.randrange(8)
    return bytes(hurt)


def _digit(content: bytes, draw: random.Random) -> bytes:
    """Another digit or letter, so that text stays text and JSON stays JSON."""
    hurt = bytearray(content or b"0")
    digits = [place for place, byte in enumerate(hurt) if chr(byte).isalnum() and byte < 128]
    place = draw.choice(digits or [0])
    choices = b"0123456789" if chr(hurt[place]).isdecimal() else b"abcdefghijklmnopqrstuvwxyz"
    hurt[place] = draw.choice([byte for byte in choices if byte != hurt[place]])
    return bytes(hurt)


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))] if content else b"\0"


def _grow(content: bytes, draw: random.Random) -> bytes:
    more = draw.choice([b"\0", b"\n", b"{}\n", draw.randbytes(100), content[-200:] or b"0"])
    return content + more


def _zero(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) or 1)
    size = min(draw.choice((1, 16, 512)), max(1, len(content) - start))
    return content[:start] + bytes(size) + content[start + size :]


def _swap(content: bytes, draw: random.Random) -> bytes:
    size = draw.choice((1, 16, 512))
    if len(content) < 2 * size:
        return content[::-1]
    first, second = sorted(draw.randrange(len(content) - size + 1) for _ in range(2))
    hurt = bytearray(content)
    hurt[first : first + size], hurt[second : second + size] = (
        content[second : second + size],
        content[first : first + size],
    )
    return bytes(hurt)


def _bytes_by(change: Callable[[bytes, random.Random], bytes]) -> "Damage":
    def apply(path: Path, other: Path, draw: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), draw))

    return apply


def _delete(path: Path, other: Path, draw: random.Random) -> None:
    path.unlink()


def _empty(path: Path, other: Path, draw: random.Random) -> None:
    path.write_bytes(b"")


def _folder(path: Path, other: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _link_to_nothing(path: Path, other: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _link_to_other(path: Path, other: Path, draw: random.Random) -> None:
    if other.exists():
        path.unlink()
        path.symlink_to(other)


def _other(path: Path, other: Path, draw: random.Random) -> None:
    if other.exists():
        shutil.copyfile(other, path)


Damage = Callable[[Path, Path, random.Random], None]
DAMAGE: dict[str, Damage] = {
    "bits flipped": _bytes_by(_flip),
    "a digit or letter changed": _bytes_by(_digit),
    "truncated": _bytes_by(_cut),
    "grown": _bytes_by(_grow),
    "zeroed": _bytes_by(_zero),
    "blocks swapped": _bytes_by(_swap),
    "deleted": _delete,
    "empty": _empty,
    "a folder": _folder,
    "a link to nothing": _link_to_nothing,
    "a link to another run's": _link_to_other,
    "another run's": _other,
}
"""What can happen to a file, given the same file of another run."""
