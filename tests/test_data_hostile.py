"""Files that are not what they claim, downloads that fail: one sentence, nothing half-written."""

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
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
from neada.cli import main
from neada.data import DataError
from neada.data import sources as mnist_module
from neada.data.readers import read_idx
from neada.runs import RunFolder

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


BAD_CONTENTS = {
    "empty": b"",
    "text": b"<html>404</html>",
    "unknown dtype": header(1, code=7) + b"1",
    "many dimensions": bytes([0, 0, 8, 255]) + bytes(1020),
    "truncated header": IMAGES[:10],
    "truncated content": IMAGES[:-1],
    "trailing bytes": IMAGES + b"!",
    "huge": header(2**32 - 1, 2**32 - 1, 2**32 - 1, code=14),
    "no entries": header(0, 2**32 - 1),
}
BAD_PACKED = {
    "truncated": gzip.compress(IMAGES)[:-12],
    "wrong checksum": gzip.compress(IMAGES)[:-8] + bytes(8),
    "bad stream": gzip.compress(IMAGES)[:10] + b"\xff" * 20,
    "trailing bytes": gzip.compress(IMAGES) + b"garbage",
    "longer": gzip.compress(IMAGES + b"!"),
    "not IDX": gzip.compress(b"hello world"),
    "not gzip": IMAGES,
}


@pytest.mark.parametrize(
    ("name", "content"),
    [*[("file", c) for c in BAD_CONTENTS.values()], *[("a.gz", c) for c in BAD_PACKED.values()]],
    ids=[*BAD_CONTENTS, *(f"gzip, {case}" for case in BAD_PACKED)],
)
def test_a_bad_idx_file_is_refused(name, content, tmp_path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name) as caught:
        read_idx(tmp_path / name)
    assert one_sentence(caught.value)


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
    with pytest.raises(DataError, match="bytes"):
        read_idx(bomb)
    with pytest.raises(DataError, match="gunzip"):
        read_idx(honest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23


def test_what_is_no_file_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "zeros"):
        with pytest.raises(DataError, match="regular"):
            read_idx(path)
    with pytest.raises(DataError, match="file"):
        read_idx(tmp_path / "missing")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="read"):
        read_idx(tmp_path / "loop")


def write_folder(folder: Path, **changes: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        key = name.split("-idx")[0].replace("-", "_")
        (folder / name).write_bytes(changes.get(key, content))
    return folder


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train_labels": header(5) + bytes(5)}, "images"),
        ({"t10k_labels": LABELS[:-1] + b"\x0a"}, "label"),
        ({"train_images": LABELS}, "hold"),
        ({"t10k_images": header(6, 2, 1) + bytes(12)}, "inputs"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(changes, sentence, tmp_path) -> None:
    folder = write_folder(tmp_path / "mnist", **changes)
    with pytest.raises(DataError, match=sentence) as caught:
        data.load("mnist", folder=folder)
    assert one_sentence(caught.value)


GOOD_INPUTS, GOOD_TARGETS = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"inputs": GOOD_INPUTS}, "array"),
        ({"x": GOOD_INPUTS, "y": GOOD_TARGETS[:5]}, "shape"),
        ({"inputs": GOOD_INPUTS, "targets": GOOD_TARGETS[:, None]}, "targets"),
        ({"inputs": GOOD_TARGETS, "targets": GOOD_TARGETS}, "inputs"),
        ({"inputs": np.full((6, 2), np.nan), "targets": GOOD_TARGETS}, "float32"),
        ({"inputs": GOOD_INPUTS[:2], "targets": GOOD_TARGETS[:2]}, "samples"),
        (
            {"inputs": GOOD_INPUTS, "targets": GOOD_TARGETS, "groups": GOOD_TARGETS[:3]},
            "groups",
        ),
    ],
)
def test_arrays_that_are_no_data_are_refused(arrays, sentence, tmp_path) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=sentence) as caught:
        data.load(tmp_path / "own.npz")
    assert "npz" in str(caught.value) and one_sentence(caught.value)


def test_pickled_objects_are_not_opened(tmp_path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "opened"),)

    np.savez(tmp_path / "own.npz", inputs=np.array([[Evil()]], dtype=object), targets=GOOD_TARGETS)
    with pytest.raises(DataError, match="inputs"):
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


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip at all", IMAGES])
def test_what_is_no_archive_is_refused(content, tmp_path) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(DataError, match="intact"):
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
        ("wrong", "wrong"),
        ("broken", "checksum"),
    ],
)
def test_a_failed_download_leaves_nothing(folder, sentence, mirror, cache, monkeypatch) -> None:
    use_mirrors(monkeypatch, f"{mirror}/{folder}/")
    with pytest.raises(DataError, match=sentence) as caught:
        data.load("mnist", download=True)
    assert "train" in str(caught.value)
    assert one_sentence(caught.value)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_only_this_command_allows_a_download(mirror, cache, monkeypatch, tmp_path, capsys) -> None:
    use_mirrors(monkeypatch, f"{mirror}/good/")
    run = str(tmp_path / "run")
    train = [
        "train",
        "--data",
        "mnist",
        "--model",
        "mlp",
        "--max-calls",
        "4",
        "--out",
        run,
        "--quiet",
    ]
    assert main([*train, "--download"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "download" not in config

    shutil.rmtree(cache)
    opened: list[object] = []
    resume = ["train", "--out", run, "--resume", "--quiet"]
    commands = (resume, [*resume, "--max-calls", "8"], ["attack", run], ["certify", run])
    with monkeypatch.context() as patch:
        patch.setattr(mnist_module, "_download", lambda *arguments: opened.append(arguments))
        for command in commands:
            capsys.readouterr()
            assert main(command) == 2
            assert "download" in capsys.readouterr().err
        RunFolder(run).write_config({**config, "download": True})
        assert {main(command) for command in commands} == {2}
    assert opened == []
    RunFolder(run).write_config(config)
    assert main([*resume, "--download"]) == 0
    shutil.rmtree(cache)
    assert main(["attack", run, "--download"]) == 0


def test_no_network_is_one_sentence(cache, monkeypatch) -> None:
    def no_network(*_, **__) -> None:
        raise urllib.error.URLError(OSError(-3, "Temporary failure in name resolution"))

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with pytest.raises(DataError, match="name") as caught:
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


def test_downloads_go_over_https_and_have_full_checksums() -> None:
    for origin in mnist_module._ORIGINS.values():
        assert origin.mirrors and all(url.startswith("https://") for url in origin.mirrors)
        assert all(url.endswith("/") for url in origin.mirrors)
        assert len({*origin.sha256}) == 4
        assert all(len(bytes.fromhex(checksum)) == 32 for checksum in origin.sha256)
