"""Files that are not what they claim, downloads that fail: one sentence, nothing half-written."""

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import threading
import time
import tracemalloc
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neada import data
from neada.data import DataError
from neada.data import sources as mnist_module
from neada.data.readers import read_idx

IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(24))
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 6]) + bytes([0, 1, 2, 3, 4, 9])
FILES = {
    "train-images-idx3-ubyte": IMAGES,
    "train-labels-idx1-ubyte": LABELS,
    "t10k-images-idx3-ubyte": IMAGES,
    "t10k-labels-idx1-ubyte": LABELS,
}


def header(*shape: int, code: int = 8) -> bytes:
    return bytes([0, 0, code, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)


def one_sentence(error: BaseException) -> bool:
    text = str(error)
    return text.isprintable() and len(text) < 600 and text[:1] != "" and not text.endswith(".")


# what is in the file, and what the sentence says of it
BAD_CONTENTS = {
    "empty": (b"", "not an IDX file: it begins with nothing"),
    "three bytes": (b"\0\0\x08", "not an IDX file: it begins with 000008"),
    "text": (b"<html>404</html>", "not an IDX file: it begins with 3c68746d"),
    "unknown dtype": (header(1, code=7) + b"1", "not an IDX file"),
    "no dimensions": (bytes([0, 0, 8, 0]), "announces 0 dimensions"),
    "many dimensions": (bytes([0, 0, 8, 255]) + bytes(1020), "announces 255 dimensions"),
    "cut header": (IMAGES[:10], "ends inside its header"),
    "cut content": (IMAGES[:-1], "is truncated: it announces 40 bytes and has 39"),
    "garbage behind": (IMAGES + b"!", "more than the 40 bytes it announces"),
    "huge": (header(2**32 - 1, 2**32 - 1, 2**32 - 1, code=14), "is truncated"),
    "holds nothing": (header(0, 2**32 - 1), "holds nothing"),
}
BAD_PACKED = {
    "cut": (gzip.compress(IMAGES)[:-12], "damaged gzip file"),
    "wrong checksum": (gzip.compress(IMAGES)[:-8] + bytes(8), "damaged gzip file"),
    "two bytes": (b"\x1f\x8b", "damaged gzip file"),
    "bad method": (b"\x1f\x8b\x01" + bytes(20), "damaged gzip file"),
    "bad stream": (gzip.compress(IMAGES)[:10] + b"\xff" * 20, "damaged gzip file"),
    "garbage behind": (gzip.compress(IMAGES) + b"garbage", "damaged gzip file"),
    "second member": (gzip.compress(IMAGES) + gzip.compress(b"!"), "more than the 24 bytes"),
    "cut content": (gzip.compress(IMAGES[:-3]), "is truncated: it announces 24 bytes and has 21"),
    "longer": (gzip.compress(IMAGES + b"!"), "more than the 24 bytes"),
    "no IDX": (gzip.compress(b"hello world"), "not an IDX file"),
    "cut header": (gzip.compress(IMAGES[:10]), "ends inside its header"),
    "holds nothing": (gzip.compress(header(0, 2**32 - 1)), "holds nothing"),
    "cannot hold": (gzip.compress(header(2**31, 100)), "more than .* gzipped bytes can hold"),
    "not gzip": (IMAGES, "not gzipped although its name says so"),
}


@pytest.mark.parametrize("case", BAD_CONTENTS)
def test_a_bad_idx_file_is_refused(case, tmp_path) -> None:
    content, sentence = BAD_CONTENTS[case]
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read_idx(path)
    assert str(path) in str(caught.value) and one_sentence(caught.value)


@pytest.mark.parametrize("case", BAD_PACKED)
def test_a_bad_gzip_file_is_refused(case, tmp_path) -> None:
    content, sentence = BAD_PACKED[case]
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read_idx(path)
    assert str(path) in str(caught.value) and one_sentence(caught.value)


def test_a_gzip_bomb_costs_no_memory(tmp_path) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", 9) as file:
        file.write(IMAGES)
        for _ in range(32):
            file.write(bytes(2**20))
    honest = tmp_path / "honest.gz"  # announces what it unpacks to: more than is allowed
    rows = 2**28 // 2**20 + 1
    honest.write_bytes(gzip.compress(header(rows, 2**20)) + bytes(3 * 2**20))
    tracemalloc.start()
    with pytest.raises(DataError, match="more than the 24 bytes it announces"):
        read_idx(bomb)
    with pytest.raises(DataError, match="gunzip it, and it will be mapped"):
        read_idx(honest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23


def test_a_sparse_file_of_many_gigabytes_is_refused(tmp_path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    rows = 2**29 // 784 + 1
    with (tmp_path / "train-images-idx3-ubyte").open("wb") as file:
        file.write(header(rows, 28, 28))
        file.truncate(16 + rows * 784)
    with (tmp_path / "train-labels-idx1-ubyte").open("wb") as file:
        file.write(header(rows))
        file.truncate(8 + rows)
    with pytest.raises(DataError, match="numbers, and at most 536,870,912 are loaded"):
        data.load("mnist", folder=tmp_path)


def test_a_packed_array_of_zeros_is_refused_before_it_is_unpacked(tmp_path) -> None:
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        zeros = {"inputs": np.zeros((2**21, 129), np.uint8), "targets": np.zeros(2**21, int)}
        for name, array in zeros.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    with pytest.raises(DataError, match="too many to unpack"):
        data.load(path)


def test_what_is_no_file_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "zeros"):
        with pytest.raises(DataError, match="not a regular file"):
            read_idx(path)
    with pytest.raises(DataError, match="No such file"):
        read_idx(tmp_path / "missing")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "loop")


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(IMAGES)

    def refuse(*_, **__) -> None:
        raise PermissionError(13, "Permission denied")  # root can read every file

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        read_idx(path)


def write_folder(folder: Path, **changes: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        key = name.split("-idx")[0].replace("-", "_")
        (folder / name).write_bytes(changes.get(key, content))
    return folder


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train_labels": header(5) + bytes(5)}, "has 6 images but .* has 5 labels"),
        ({"t10k_labels": LABELS[:-1] + b"\x0a"}, "has the label 10; labels must be below 10"),
        ({"train_images": LABELS}, "does not hold images of bytes"),
        ({"train_images": header(6, 2, 2, code=9) + bytes(24)}, "does not hold images of bytes"),
        ({"train_labels": IMAGES}, "does not hold labels of bytes"),
        ({"t10k_labels": header(6, code=12) + bytes(24)}, "does not hold labels of bytes"),
        ({"t10k_images": header(6, 2, 1) + bytes(12)}, r"inputs of shape \(1, 2, 1\)"),
        (
            {"train_images": header(5, 2, 2) + bytes(20), "train_labels": header(5) + bytes(5)},
            "has 5 images; at least 6 are needed",
        ),
    ],
)
def test_files_that_do_not_fit_together_are_refused(changes, sentence, tmp_path) -> None:
    folder = write_folder(tmp_path / "mnist", **changes)
    with pytest.raises(DataError, match=sentence) as caught:
        data.load("mnist", folder=folder)
    assert one_sentence(caught.value)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path) -> None:
    folder = write_folder(tmp_path / "mnist")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    (folder / "t10k-labels-idx1-ubyte").mkdir()
    with pytest.raises(DataError, match="not a regular file"):
        data.load("mnist", folder=folder)


GOOD_INPUTS, GOOD_TARGETS = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"inputs": GOOD_INPUTS}, "has no array 'targets'"),
        ({"x": GOOD_INPUTS}, "has no array 'targets'"),
        ({"targets": GOOD_TARGETS, "z": GOOD_INPUTS}, "has no array 'inputs'"),
        ({"x": GOOD_INPUTS, "y": GOOD_TARGETS[:5]}, r"y has shape \(5,\) but there are 6 inputs"),
        ({"inputs": GOOD_INPUTS, "targets": GOOD_TARGETS[:, None]}, r"targets has shape \(6, 1\)"),
        ({"inputs": GOOD_INPUTS, "targets": GOOD_TARGETS * 0.5}, "targets has dtype float64"),
        ({"inputs": GOOD_INPUTS, "targets": GOOD_TARGETS - 1}, "targets runs from -1 to 0"),
        (
            {"inputs": GOOD_INPUTS, "targets": GOOD_TARGETS * 10**12},
            "targets runs from 0 to 1000000000000",
        ),
        ({"inputs": GOOD_TARGETS, "targets": GOOD_TARGETS}, r"inputs has shape \(6,\)"),
        ({"inputs": np.zeros((0, 2)), "targets": GOOD_TARGETS[:0]}, r"inputs has shape \(0, 2\)"),
        ({"inputs": np.full((6, 2), np.nan), "targets": GOOD_TARGETS}, "not finite as float32"),
        ({"inputs": np.full((6, 2), 1e300), "targets": GOOD_TARGETS}, "not finite as float32"),
        ({"inputs": GOOD_INPUTS.astype(str), "targets": GOOD_TARGETS}, "'inputs' has dtype <U"),
        (
            {"inputs": GOOD_INPUTS.astype(complex), "targets": GOOD_TARGETS},
            "'inputs' has dtype complex128",
        ),
        ({"inputs": GOOD_INPUTS[:2], "targets": GOOD_TARGETS[:2]}, "2 samples cannot be split"),
        (
            {"inputs": GOOD_INPUTS, "targets": GOOD_TARGETS, "groups": GOOD_TARGETS[:3]},
            r"groups has shape \(3,\)",
        ),
    ],
)
def test_arrays_that_are_no_data_are_refused(arrays, sentence, tmp_path) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=sentence) as caught:
        data.load(tmp_path / "own.npz")
    assert "own.npz" in str(caught.value) and one_sentence(caught.value)


def test_pickled_objects_are_not_opened(tmp_path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "opened"),)

    np.savez(tmp_path / "own.npz", inputs=np.array([[Evil()]], dtype=object), targets=GOOD_TARGETS)
    with pytest.raises(DataError, match="'inputs' has dtype object"):
        data.load(tmp_path / "own.npz")
    assert not (tmp_path / "opened").exists()


def npy_header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


@pytest.mark.parametrize("shape", [(10**12, 10**6), (10**5, 10**5), (-6, -2), (3, 2)])
def test_an_npz_file_that_announces_another_size_is_refused(shape, tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("inputs.npy", npy_header(shape) + GOOD_INPUTS.tobytes())
    tracemalloc.start()
    with pytest.raises(DataError, match="'inputs' is not of the size|no intact .npz archive"):
        data.load(tmp_path / "own.npz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


def test_an_npz_bomb_is_refused_before_it_is_unpacked(tmp_path) -> None:
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", npy_header((2**27, 2**2)) + bytes(1000))
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match="announces more of 'inputs' than it can hold"):
        data.load(path)
    content[directory + 20 : directory + 24] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match="announces more of 'inputs' than it can hold|no intact"):
        data.load(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip at all", IMAGES])
def test_what_is_no_archive_is_refused(content, tmp_path) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(DataError, match="no intact .npz archive"):
        data.load(tmp_path / "own.npz")


@pytest.mark.parametrize("kind", ["idx", "idx.gz", "npz"])
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 2**16)),
)
def test_damage_anywhere_is_harmless(kind, changes, cut, tmp_path) -> None:
    if kind == "npz":
        file = io.BytesIO()
        np.savez_compressed(file, inputs=GOOD_INPUTS, targets=GOOD_TARGETS)
        content = bytearray(file.getvalue())
    else:
        content = bytearray(gzip.compress(IMAGES) if kind == "idx.gz" else IMAGES)
    for position, value in changes:
        content[position % len(content)] = value
    path = tmp_path / f"file.{kind}"
    path.write_bytes(content[: None if cut is None else cut % len(content)])
    try:
        data.load(path) if kind == "npz" else read_idx(path)
    except DataError as error:
        assert str(path) in str(error) or path.name in str(error)


def test_names_and_errors_of_an_archive_are_shown_in_short(tmp_path) -> None:
    path = tmp_path / "names.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for place in range(5):
            archive.writestr(f"{place}\x01\x1b[31m" + 60_000 * "n", b"")
    with pytest.raises(DataError, match="has no array 'inputs'") as caught:
        data.load(path)
    assert one_sentence(caught.value)
    np.savez(path, inputs=np.zeros((4, 2)), targets=np.zeros(4, dtype=int))
    content = path.read_bytes()
    # The two places of a name differ: the standard library puts both into its message.
    path.write_bytes(content.replace(b"inputs.npy", b"\xff\x00\x1b\x07\rs.npy", 1))
    with pytest.raises(DataError, match="no intact .npz archive") as caught:
        data.load(path)
    assert one_sentence(caught.value)


@pytest.mark.parametrize(
    ("name", "folder", "kind", "sentence"),
    [
        ("a\0b.npz", None, ValueError, "name must be a path without null characters"),
        ("mnist", "a\0b", ValueError, "folder must be a path without null characters"),
        ("mnist", "", ValueError, "folder is empty: give a path"),
        ("mnist", 3, TypeError, "folder must be a path, got 3"),
        (3, None, TypeError, "name must be that of a data set, or the path of an .npz file, got 3"),
        (b"digits", None, TypeError, "name must be that of a data set"),
    ],
)
def test_a_name_that_is_none_is_one_sentence(name, folder, kind, sentence) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        data.load(name, folder=folder)
    assert one_sentence(caught.value)


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves FILES, gzipped, each in the way that its folder says."""

    def do_GET(self) -> None:
        folder, _, name = self.path.strip("/").rpartition("/")
        content = gzip.compress(FILES[name.removesuffix(".gz")], mtime=0)
        if folder == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if folder == "wrong":
            content = b"!" + content[1:]
        if folder == "slow":
            with contextlib.suppress(OSError):  # the reader leaves
                for place in range(100):  # 20 s in all
                    self.wfile.write(content[place : place + 1])
                    time.sleep(0.2)
            return
        self.wfile.write(content[: len(content) // 2] if folder == "broken" else content)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("NEADA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "neada" / "mnist"


def use_mirrors(monkeypatch: pytest.MonkeyPatch, *mirrors: str) -> None:
    sums = [hashlib.sha256(gzip.compress(c, mtime=0)).hexdigest() for c in FILES.values()]
    origin = mnist_module._ORIGINS["mnist"]._replace(mirrors=mirrors, sha256=tuple(sums))
    monkeypatch.setitem(mnist_module._ORIGINS, "mnist", origin)


def test_a_download_fills_the_cache_once(mirror, cache, monkeypatch) -> None:
    use_mirrors(monkeypatch, f"{mirror}/missing/", f"{mirror}/wrong/", f"{mirror}/good/")
    found = data.load("mnist", download=True)
    assert found.targets_test.tolist() == [0, 1, 2, 3, 4, 9]
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{name}.gz" for name in FILES)
    monkeypatch.setattr(urllib.request, "urlopen", None)  # not asked again
    assert data.load("mnist", download=True).source == data.load("mnist").source == str(cache)


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("missing", "404"),
        ("wrong", "wrong checksum"),
        ("broken", "checksum"),
    ],
)
def test_a_failed_download_leaves_nothing(folder, sentence, mirror, cache, monkeypatch) -> None:
    use_mirrors(monkeypatch, f"{mirror}/{folder}/")
    with pytest.raises(DataError, match=sentence) as caught:
        data.load("mnist", download=True)
    assert "train-images-idx3-ubyte.gz could not be downloaded" in str(caught.value)
    assert one_sentence(caught.value)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_only_what_is_missing_is_downloaded(mirror, cache, monkeypatch) -> None:
    use_mirrors(monkeypatch, f"{mirror}/good/")
    data.load("mnist", download=True)
    kept = cache / "train-images-idx3-ubyte.gz"
    before = kept.stat().st_mtime_ns
    (cache / "t10k-labels-idx1-ubyte.gz").unlink()
    data.load("mnist", download=True)
    assert kept.stat().st_mtime_ns == before
    assert (cache / "t10k-labels-idx1-ubyte.gz").exists()


def test_no_network_is_one_sentence(cache, monkeypatch) -> None:
    def no_network(*_, **__) -> None:
        raise urllib.error.URLError(OSError(-3, "Temporary failure in name resolution"))

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with pytest.raises(DataError, match="name resolution.*; check the network") as caught:
        data.load("mnist", download=True)
    assert one_sentence(caught.value)
    assert not cache.exists()


class Response(io.BytesIO):
    headers: dict[str, str] = {}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_nothing(error, tmp_path, monkeypatch) -> None:
    content = b"content"
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response(content))

    def fail(*_) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    target = tmp_path / "folder" / "file"
    target.parent.mkdir()
    target.write_bytes(b"before")
    checksum = hashlib.sha256(content).hexdigest()
    with pytest.raises(type(error)):
        mnist_module._download(["https://example.org/file"], target, checksum)
    assert target.read_bytes() == b"before"
    assert list(target.parent.iterdir()) == [target]


def test_an_endless_download_is_cut(tmp_path, monkeypatch) -> None:
    class Endless(Response):
        def read1(self, size: int = -1) -> bytes:
            return bytes(2**20)

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Endless())
    with pytest.raises(DataError, match="larger than"):
        mnist_module._download(["https://example.org/file"], tmp_path / "file", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_drips_ends_in_time(mirror, cache, monkeypatch) -> None:
    monkeypatch.setattr(mnist_module, "_MAX_SECONDS", 0.5)
    use_mirrors(monkeypatch, f"{mirror}/slow/", f"{mirror}/good/")
    started = time.monotonic()
    data.load("mnist", download=True)
    assert time.monotonic() - started < 20.0
    assert len(list(cache.iterdir())) == 4


def test_downloads_go_over_https_and_have_full_checksums() -> None:
    for origin in mnist_module._ORIGINS.values():
        assert origin.mirrors and all(url.startswith("https://") for url in origin.mirrors)
        assert all(url.endswith("/") for url in origin.mirrors)
        assert len({*origin.sha256}) == 4
        assert all(len(bytes.fromhex(checksum)) == 32 for checksum in origin.sha256)
