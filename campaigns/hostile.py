"""Files that are nearly right: IDX, npz, JSON and checkpoints, made from a random generator."""

import gzip
import io
import json
import math
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from campaigns.damage import hurt_bytes

__all__ = ["PROBE", "Canary", "idx", "json_text", "npz", "state"]

PROBE = '"><probe-x onprobe="1">&</script></style><probe-x>'
"""Markup that must not become a part of a page."""
_CODES = {0x08: 1, 0x09: 1, 0x0B: 2, 0x0C: 4, 0x0D: 4, 0x0E: 8}
_SIZES = (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1)


class Canary:
    """An object whose pickle writes a file when it is read.

    Args:
        path: The file that must not appear.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def idx(draw: random.Random) -> bytes:
    """An IDX file, gzipped or not."""
    code = draw.choice(list(_CODES))
    shape = [draw.randrange(1, 5) for _ in range(draw.randrange(1, 4))]
    content = draw.randbytes(_CODES[code] * math.prod(shape))
    num_dimensions = len(shape)
    match draw.randrange(6):
        case 0:
            code = draw.randrange(256)
        case 1:
            num_dimensions = draw.choice((0, 1, 2, 8, 9, 255))
        case 2:
            shape[draw.randrange(len(shape))] = draw.choice(_SIZES)
        case 3:
            content = content[: draw.randrange(len(content) + 1)]
        case 4:
            content += draw.randbytes(draw.randrange(1, 50))
    head = bytes([0, 0, code, num_dimensions]) + struct.pack(f">{len(shape)}I", *shape)
    whole = head + content
    if draw.random() < 0.3:
        whole = hurt_bytes(whole, draw)
    if draw.random() < 0.4:
        whole = gzip.compress(whole, 1, mtime=0)
        if draw.random() < 0.1:
            whole += gzip.compress(bytes(draw.choice((1, 2**16))), 9, mtime=0)
        if draw.random() < 0.4:
            whole = hurt_bytes(whole, draw)
    return whole


def npz(draw: random.Random, canary: Path) -> bytes:
    """An `.npz` archive with inputs, targets and perhaps groups."""
    num = draw.choice((8, 8, 8, 0, 1, 3))
    members = {
        "inputs.npy": _npy(_array(draw, (num, draw.choice((1, 4)))), draw, canary),
        "targets.npy": _npy(np.arange(num) % draw.choice((1, 2, 3)), draw, canary),
    }
    if draw.random() < 0.3:
        members["groups.npy"] = _npy(np.arange(num) % 2, draw, canary)
    if draw.random() < 0.1:
        members[draw.choice(("x.npy", "../x.npy", "y.npy", PROBE, "\x1b[2J.npy"))] = b"x"
    if draw.random() < 0.1:
        members.pop(draw.choice(list(members)))
    packing = draw.choice((0, 0, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", packing) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    whole = content.getvalue()
    return hurt_bytes(whole, draw) if draw.random() < 0.4 else whole


def _array(draw: random.Random, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    array = np.random.default_rng(draw.randrange(2**32)).normal(size=shape)
    return array.astype(draw.choice(("f4", "f4", "f8", "f2", ">f4", "u1", "i8", "?", "c16", "U3")))


def _npy(array: np.ndarray[Any, Any], draw: random.Random, canary: Path) -> bytes:
    """The array as a member, perhaps with another header, or a pickle."""
    content = io.BytesIO()
    choice = draw.randrange(12)
    if choice == 0:
        objects = np.empty(1, dtype=object)
        objects[0] = Canary(canary)
        np.save(content, objects, allow_pickle=True)
        return content.getvalue()
    if choice == 1:
        array = np.array(array, order="F")
    if choice == 2 and array.size and array.dtype.kind == "f":
        array.flat[draw.randrange(array.size)] = draw.choice((math.nan, math.inf, 1e300))
    np.save(content, array, allow_pickle=False)
    whole = content.getvalue()
    if choice == 3:
        shape = draw.choice(("(2, -1)", "(4294967296, 4294967296)", "()", "'x'", "(1,)" * 9, "[2]"))
        descr = draw.choice(("'<f4'", "'|O'", "[('a', '<f4')]", "'<V1000000000'", "1", "'<M8[s]'"))
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
        whole = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + whole[-32:]
    if choice == 4:
        whole = whole[:6] + bytes([draw.randrange(256), draw.randrange(4)]) + whole[8:]
    return hurt_bytes(whole, draw) if choice == 5 else whole


def _odd(draw: random.Random) -> Any:
    """A value of JSON that is not what anybody expects."""
    return draw.choice(
        [
            *(None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, 2**63, -(2**63), 10**30, 10**400),
            *(
                "",
                "inf",
                "-inf",
                "nan",
                "NaN",
                "1",
                "quick",
                "synthetic",
                "\0",
                "\ud800",
                "\x1b[2J",
            ),
            *("x" * 100_000, PROBE, "../..", "/dev/zero", "é" * 300, "quadratic", "l2"),
            *([], {}, [[]], [None], [1, "a"], {"a": 1}, [PROBE], {PROBE: PROBE}, [1.0] * 1000),
        ]
    )


def json_text(valid: Any, draw: random.Random) -> bytes:
    """JSON in which some values, keys or characters are not what they were."""
    content = json.loads(json.dumps(valid))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        content = _mutated(content, draw, _odd)
    text = json.dumps(content)
    match draw.randrange(30):
        case 0:
            text = "[" * 100_000
        case 1:
            text = '{"a":' * 5000 + "1" + "}" * 5000
        case 2:
            text = text.replace(": ", f": {'9' * 5000}, {PROBE!r}: ".replace("'", '"'), 1)
        case 3:
            text = text.replace("null", draw.choice(("NaN", "Infinity", "-Infinity", "1e999")))
        case 4:
            return "\ufeff".encode() + text.encode("utf-8", "surrogatepass")
        case 5:
            return text.encode("utf-16", "surrogatepass")
        case 6:
            text += draw.choice((" ", "\n", "x", text, "//", "\0"))
        case 7 | 8 | 9:
            return hurt_bytes(text.encode("utf-8", "surrogatepass"), draw)
        case 10:
            return draw.randbytes(draw.randrange(200))
    return text.encode("utf-8", "surrogatepass")


def _mutated(content: Any, draw: random.Random, odd: Any) -> Any:
    """The same tree with one entry replaced, removed, doubled or added."""
    if not isinstance(content, dict | list) or not content or draw.random() < 0.05:
        return odd(draw)
    key = draw.choice(list(content)) if isinstance(content, dict) else draw.randrange(len(content))
    entry = content[key]
    copy = dict(content) if isinstance(content, dict) else list(content)
    if isinstance(entry, dict | list) and entry and draw.random() < 0.7:
        copy[key] = _mutated(entry, draw, odd)
    elif draw.random() < 0.2:
        del copy[key]
    elif draw.random() < 0.1:
        if isinstance(copy, dict):
            copy[draw.choice((PROBE, "x", "", "seed"))] = odd(draw)
        else:
            copy.append(odd(draw))
    else:
        copy[key] = odd(draw)
    return copy


def state(valid: dict[str, Any], draw: random.Random, canary: Path) -> bytes:
    """A checkpoint's content: a valid one in which some entries are others."""

    def odd(draw: random.Random) -> Any:
        return draw.choice(
            [
                *(None, True, 0, -1, 2**62, 1.5, math.nan, math.inf, "", "x", PROBE),
                *([], {}, [[]], {"a": 1}, {0: torch.zeros(1)}, [torch.zeros(2)], (1, 2), b"x"),
                *(
                    torch.zeros(()),
                    torch.zeros(3),
                    torch.zeros(0),
                    torch.zeros(2, 2, dtype=torch.int8),
                ),
                *(torch.full((5,), math.nan), torch.zeros(1).expand(10**9), torch.zeros(3).bool()),
                *(torch.zeros(2, dtype=torch.complex64), torch.zeros(4).to_sparse()),
            ]
        )

    content: Any = valid
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        content = _mutated(content, draw, odd)
    if draw.random() < 0.03:
        content = Canary(canary) if draw.random() < 0.3 else {**valid, "model": Canary(canary)}
    file = io.BytesIO()
    torch.save(content, file)
    whole = file.getvalue()
    return hurt_bytes(whole, draw) if draw.random() < 0.15 else whole
