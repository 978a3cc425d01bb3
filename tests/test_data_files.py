"""Damaged data files raise one `DataError`; downloads are atomic, checked and only on request."""

import gzip
import hashlib
import http.server
import io
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from neada import data
from neada.cli import main
from neada.data import DataError, sources
from neada.runs import RunFolder

IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(24))
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 6]) + bytes([0, 1, 2, 3, 4, 9])
FILES = {
    "train-images-idx3-ubyte": IMAGES,
    "train-labels-idx1-ubyte": LABELS,
    "t10k-images-idx3-ubyte": IMAGES,
    "t10k-labels-idx1-ubyte": LABELS,
}

BAD_IMAGES = {
    "empty": b"",
    "text": b"<html>404</html>",
    "truncated header": IMAGES[:10],
    "truncated content": IMAGES[:-1],
    "trailing bytes": IMAGES + b"!",
    "huge": bytes([0, 0, 8, 3]) + b"\xff" * 12,
    "truncated gzip": gzip.compress(IMAGES)[:-12],
    "damaged gzip": gzip.compress(IMAGES)[:10] + b"\xff" * 20,
    "labels": LABELS,
    "too few": bytes([0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(20),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_a_damaged_idx_file_raises(case, tmp_path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(BAD_IMAGES[case])
    with pytest.raises(DataError, match="train-images"):
        data.load("mnist", folder=tmp_path)


INPUTS, TARGETS = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
BAD_ARRAYS = {
    "no targets": {"inputs": INPUTS},
    "fewer targets": {"x": INPUTS, "y": TARGETS[:5]},
    "fractions as targets": {"inputs": INPUTS, "targets": TARGETS + 0.5},
    "a stray label": {"inputs": INPUTS, "targets": TARGETS * 1000},
    "a negative label": {"inputs": INPUTS, "targets": -TARGETS},
    "inputs without rows": {"inputs": TARGETS, "targets": TARGETS},
    "NaN": {"inputs": np.full((6, 2), np.nan), "targets": TARGETS},
    "too few to split": {"inputs": INPUTS[:2], "targets": TARGETS[:2]},
    "fewer groups": {"inputs": INPUTS, "targets": TARGETS, "groups": TARGETS[:3]},
    "pickled objects": {"inputs": np.array([[print]]), "targets": TARGETS},
}


def archive(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


BAD_ARCHIVES = {
    "empty": b"",
    "text": b"no zip at all",
    "another format": IMAGES,
    "truncated": archive(inputs=INPUTS, targets=TARGETS)[:-30],
    "damaged": archive(inputs=INPUTS, targets=TARGETS).replace(b"inputs", b"inpu!s"),
    **{case: archive(**arrays) for case, arrays in BAD_ARRAYS.items()},
}


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_a_bad_npz_file_raises(case, tmp_path) -> None:
    (tmp_path / "own.npz").write_bytes(BAD_ARCHIVES[case])
    with pytest.raises(DataError, match="own"):
        data.load(tmp_path / "own.npz")


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves FILES, gzipped; the folder of the request chooses the failure."""

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
    origin = sources._ORIGINS["mnist"]._replace(mirrors=mirrors, sha256=tuple(sums))
    monkeypatch.setitem(sources._ORIGINS, "mnist", origin)


def test_a_download_fills_the_cache_once(mirror, cache, monkeypatch) -> None:
    use_mirrors(monkeypatch, f"{mirror}/missing/", f"{mirror}/wrong/", f"{mirror}/good/")
    found = data.load("mnist", download=True)
    assert found.targets_test.tolist() == [0, 1, 2, 3, 4, 9]
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{name}.gz" for name in FILES)
    monkeypatch.setattr("torch.hub.urlopen", None)  # not asked again
    assert data.load("mnist", download=True).source == data.load("mnist").source == str(cache)


@pytest.mark.parametrize("folder", ["missing", "wrong", "broken"])
def test_a_failed_download_leaves_nothing(folder, mirror, cache, monkeypatch) -> None:
    use_mirrors(monkeypatch, f"{mirror}/{folder}/")
    with pytest.raises(DataError, match="train"):
        data.load("mnist", download=True)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_only_this_command_allows_a_download(mirror, cache, monkeypatch, tmp_path, capsys) -> None:
    use_mirrors(monkeypatch, f"{mirror}/good/")
    run = str(tmp_path / "run")
    train = ["train", "--data", "mnist", "--model", "mlp"]
    train += ["--max-calls", "4", "--out", run, "--quiet"]
    assert main([*train, "--download"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "download" not in config

    shutil.rmtree(cache)
    opened: list[object] = []
    resume = ["train", "--out", run, "--resume", "--quiet"]
    commands = (resume, [*resume, "--max-calls", "8"], ["attack", run], ["certify", run])
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_download", lambda *arguments: opened.append(arguments))
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
