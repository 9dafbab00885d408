"""Forests as arrays: scikit-learn's predictions to the last bit, and no row sees its own target."""

import importlib
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from pyro_dgp._files import read_tensors, write_tensors
from pyro_dgp.forests import Forest

NAMES = ("roots", "feature", "threshold", "children", "value")


def data(num_rows=80, num_columns=3, num_outputs=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_columns))
    shape = (num_rows,) if num_outputs is None else (num_rows, num_outputs)
    y = np.sin(2 * X[:, 0]).reshape(-1, *[1] * (len(shape) - 1)) + 0.3 * rng.normal(size=shape)
    return X, y


def grown(X, y, num_trees=20, seed=0, **options):
    return Forest.fitted(X, y, num_trees=num_trees, seed=seed, **options)


def reference(X, y, num_trees=20, seed=0, **options):
    y = y[:, 0] if y.shape[1:] == (1,) else y
    return ExtraTreesRegressor(num_trees, bootstrap=True, random_state=seed, **options).fit(X, y)


def of_trees(sklearn_forest, X):
    """[T, N, P]"""
    return np.stack([tree.predict(X).reshape(len(X), -1) for tree in sklearn_forest.estimators_])


def same(forest, other):
    return forest.num_inputs == other.num_inputs and all(
        np.array_equal(getattr(forest, name), getattr(other, name)) for name in NAMES
    )


@pytest.mark.parametrize("num_outputs", [None, 1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"min_samples_leaf": 4}, {"max_samples": 15}, {"min_samples_leaf": 80}]
)
def test_predictions_are_those_of_scikit_learn(num_outputs, options):
    X, y = data(num_outputs=num_outputs)
    X_new = data(300, seed=1)[0]
    forest, _ = grown(X, y, **options)
    there = of_trees(reference(X, y, **options), X_new)
    assert np.array_equal(forest.predictions(X_new), there)
    mean, sd = forest.moments(X_new)
    assert mean.shape == sd.shape == (300, num_outputs or 1)
    assert np.allclose(mean, there.mean(0), rtol=0, atol=1e-13)
    assert np.allclose(sd, there.std(0), rtol=0, atol=1e-13)
    assert (forest.num_trees, forest.num_outputs, forest.num_inputs) == (20, num_outputs or 1, 3)


def test_rows_next_to_thresholds_go_the_same_way():
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(200, 1)), 1)  # ties, and no number that float32 holds
    y = rng.normal(size=200)
    forest, _ = grown(X, y)
    at = [tree.tree_.threshold for tree in reference(X, y).estimators_]
    at = np.unique(np.concatenate(at).astype(np.float32))
    near = np.concatenate([at, np.nextafter(at, np.float32(-9)), np.nextafter(at, np.float32(9))])
    for X_new in (near[:, None], near[:, None].astype(np.float64) + 1e-9, X):
        assert np.array_equal(forest.predictions(X_new), of_trees(reference(X, y), X_new))


@pytest.mark.parametrize("y", [None, 3.0])
@pytest.mark.parametrize("num_models", [1, 3])
def test_boosted_models_as_one_forest(y, num_models):
    X, targets = data(500)
    X = X.astype(np.float32)
    targets = targets if y is None else np.full(500, y)
    models = [
        HistGradientBoostingRegressor(max_iter=10 * i + 1, random_state=i).fit(X, targets)
        for i in range(num_models)
    ]
    forest = Forest.of_boosting(models)
    # Next to thresholds, too.
    X_new = np.concatenate([data(300, seed=1)[0].astype(np.float32), X])
    X_new = np.concatenate([X_new, np.nextafter(X, np.float32(9)), np.nextafter(X, np.float32(-9))])
    there = np.mean([model.predict(X_new) for model in models], 0)
    assert np.allclose(forest.moments(X_new)[0][:, 0], there, rtol=0, atol=1e-12)
    assert same(forest, Forest.from_state(forest.state()))


def test_few_bytes_a_node():
    forest, _ = grown(*data(500))
    nodes = len(forest.feature) + len(forest.value)
    assert forest.nbytes <= 12.1 * nodes
    assert sum(part.nbytes for part in forest.state().values()) == forest.nbytes + 8


@pytest.mark.parametrize("num_outputs", [None, 2])
@pytest.mark.parametrize("options", [{}, {"min_samples_leaf": 3, "max_samples": 30}])
def test_moments_outside_the_bags(num_outputs, options):
    X, y = data(num_outputs=num_outputs)
    _, (mean, sd) = grown(X, y, 30, **options)
    assert mean.shape == sd.shape == (80, num_outputs or 1)
    there = reference(X, y, 30, **options)
    outside = np.ones((30, 80), dtype=bool)
    for t, rows in enumerate(there.estimators_samples_):
        outside[t, rows] = False
    predictions = of_trees(there, X)
    for row in range(80):
        ours = predictions[outside[:, row], row]
        assert np.allclose(mean[row], ours.mean(0), rtol=0, atol=1e-13)
        assert np.allclose(sd[row], ours.std(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("num_trees", [1, 2, 30])
@pytest.mark.parametrize("num_outputs", [None, 2])
def test_a_row_does_not_see_its_own_target(num_trees, num_outputs):
    X, y = data(40, num_outputs=num_outputs)
    weight = np.random.default_rng(1).uniform(0.5, 2, size=40)
    forest, outside = grown(X, y, num_trees, sample_weight=weight)
    everywhere = forest.moments(X)
    seen = 0
    for row in range(40):
        changed = y.copy()
        changed[row] = 1e6
        forest, moved = grown(X, changed, num_trees, sample_weight=weight)
        for before, after in zip(outside, moved, strict=True):
            assert np.array_equal(before[row], after[row])
        assert not np.array_equal(outside[0], moved[0])  # that of other rows
        # This test sees it when trees that have the row in their bag are asked, too.
        seen += any(
            not np.array_equal(before[row], after[row])
            for before, after in zip(everywhere, forest.moments(X), strict=True)
        )
    assert seen >= (40 if num_trees == 30 else 20)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_rows_in_all_bags_get_the_moments_of_the_other_targets(num_outputs):
    X, y = data(30, num_outputs=num_outputs)
    weight = np.random.default_rng(1).uniform(0.5, 2, size=30)
    weight[7] = 0
    _, (mean, sd) = grown(X, y, 1, sample_weight=weight)
    found = 0
    for row in range(30):
        others = np.delete(np.arange(30), row)
        expected = np.average(y[others], 0, weight[others])
        variance = np.average((y[others] - expected) ** 2, 0, weight[others])
        if np.allclose(mean[row], expected, rtol=0, atol=1e-13):
            assert np.allclose(sd[row], np.sqrt(variance), rtol=0, atol=1e-13)
            found += 1
        else:
            assert (sd[row] == 0).all()  # over one tree
    assert 15 <= found <= 24  # 63% are in the bag


def test_two_rows():
    X, y = np.array([[0.0], [1.0]]), np.array([1.5, -2.25])
    _, (mean, sd) = grown(X, y)  # the others' targets
    assert mean.tolist() == [[-2.25], [1.5]]
    assert sd.tolist() == [[0], [0]]
    for seed in range(9):  # in one bag, or in none
        _, (mean, sd) = grown(X, y, 1, seed)
        assert mean.tolist() == [[-2.25], [1.5]]
        assert sd.tolist() == [[0], [0]]


def test_predictions_of_one_row_and_of_none():
    X, y = data()
    forest, _ = grown(X, y)
    assert forest.moments(X[:1])[0].shape == (1, 1)
    assert forest.moments(X[:0])[0].shape == (0, 1)


@pytest.mark.parametrize("num_trees", [1, 50])
def test_constant_targets_do_not_vary(num_trees):
    X, _ = data()
    for constant in (0.0, 2.5, -3e5):
        forest, (mean, sd) = grown(X, np.full(80, constant), num_trees)
        for m, s in ((mean, sd), forest.moments(X)):
            assert (m == constant).all()
            assert (s == 0).all()
        assert len(forest.feature) == 0  # leaves only
        assert same(forest, Forest.from_state(forest.state()))
    # scikit-learn's means of a number are not always that number.
    _, (mean, sd) = grown(X, np.full(80, 0.1), num_trees)
    assert np.allclose(mean, 0.1, rtol=1e-15)
    assert (sd < 1e-16).all()


def test_a_large_offset_leaves_small_deviations_exact():
    X, y = data()
    forest, _ = grown(X, y.round(2) + 1e6, min_samples_leaf=5)
    there = forest.predictions(X) - 1e6
    assert np.allclose(forest.moments(X)[1], there.std(0), rtol=1e-7)


def test_identical_rows_and_constant_columns():
    X, y = data()
    X[:, 1] = 4
    X[40:] = X[:40]
    forest, (mean, sd) = grown(X, y)
    assert np.array_equal(forest.predictions(X), of_trees(reference(X, y), X))
    assert np.isfinite(mean).all()
    assert np.isfinite(sd).all()
    forest, _ = grown(np.ones((80, 2)), y)
    assert len(forest.feature) == 0


def test_many_columns():
    X, y = data(80, 300)
    forest, (mean, _) = grown(X, y)
    assert np.array_equal(forest.predictions(X), of_trees(reference(X, y), X))
    assert mean.shape == (80, 1)


def test_inputs_beyond_float32():
    X, y = data()
    X[0, 0], X[1, 0] = 1e300, -1e300
    forest, (mean, _) = grown(X, y)
    assert np.isfinite(mean).all()
    assert np.isfinite(forest.threshold).all()
    far = np.clip(X, -1e30, 1e30)
    assert np.array_equal(forest.moments(X[2:])[0], forest.moments(far[2:])[0])


def test_a_row_of_moments_does_not_depend_on_the_others():
    X, y = data()
    forest, _ = grown(X, y, 50)
    many = data(3000, seed=1)[0]
    for all_rows, few in zip(forest.moments(many), forest.moments(many[70:77]), strict=True):
        assert np.array_equal(all_rows[70:77], few)


def test_a_seed_fixes_the_forest_and_threads_do_not_change_it():
    X, y = data()
    forest, moments = grown(X, y)
    again, moments_again = grown(X, y, n_jobs=3)
    assert same(forest, again)
    assert np.array_equal(moments, moments_again)
    assert not same(forest, grown(X, y, seed=1)[0])


def test_a_row_without_weight_is_a_new_row():
    X, y = data(num_outputs=2)
    kept = np.arange(80) % 4 != 0
    forest, moments = grown(X, y, sample_weight=3.0 * kept)
    alone, moments_alone = grown(X[kept], y[kept])
    assert same(forest, alone)
    for outside, without, new in zip(moments, moments_alone, alone.moments(X), strict=True):
        assert np.array_equal(outside[kept], without)
        assert np.array_equal(outside[~kept], new[~kept])


def test_weights_count_within_leaves():
    X, y = data()
    weight = np.where(y > 0, 5.0, 1.0)
    forest, (mean, _) = grown(X, y, 400, sample_weight=weight, min_samples_leaf=80)
    assert np.allclose(forest.moments(X)[0], np.average(y, weights=weight), atol=0.02)
    # All rows are outside about as many bags, whatever they weigh.
    assert np.allclose(mean, np.average(y, weights=weight), atol=0.05)
    for scale in (2.0**-40, 2.0**1000):
        assert same(forest, grown(X, y, 400, sample_weight=scale * weight, min_samples_leaf=80)[0])


def test_accepts_tensors_float32_and_lists():
    X, y = data()
    X = X.astype(np.float32)
    forest, _ = grown(X, y)
    assert same(forest, grown(torch.as_tensor(X), torch.as_tensor(y))[0])
    assert same(forest, grown(X.astype(np.float64).tolist(), y.tolist())[0])
    assert same(forest, grown(np.asfortranarray(X), y[:, None])[0])


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_a_file_keeps_every_bit(tmp_path, num_outputs):
    X, y = data(num_outputs=num_outputs)
    forest, _ = grown(X, y)
    write_tensors({"format": "forest", "forest": forest.state()}, tmp_path / "forest.pt")
    back = Forest.from_state(read_tensors(tmp_path / "forest.pt", "forest")["forest"])
    assert same(forest, back)
    X_new = data(300, seed=1)[0]
    for ours, theirs in zip(forest.moments(X_new), back.moments(X_new), strict=True):
        assert np.array_equal(ours, theirs)
    assert np.array_equal(forest.predictions(X_new), back.predictions(X_new))


def test_from_state_copies():
    forest, _ = grown(*data())
    state = forest.state()
    back = Forest.from_state(state)
    state["children"].zero_()
    assert back.children.any()


@pytest.fixture
def state():
    forest, _ = grown(*data(30), 5)
    return {name: part.clone() for name, part in forest.state().items()}


def put(name, place, number):
    def damage(state):
        state[name][place] = number

    return damage


def swap(name, change):
    def damage(state):
        state[name] = change(state[name])

    return damage


# What may happen to any array.
CHANGES = [
    lambda part: part[:-1].contiguous(), lambda part: part[:0].contiguous(),
    lambda part: part[None], lambda part: part.flatten()[0],
    lambda part: torch.cat([part, part[-1:]]), lambda part: part.bool(),
    lambda part: part.to(torch.bfloat16), lambda part: part.to(torch.int64),
    lambda part: part.numpy(), lambda part: part.tolist(), lambda part: None,
    lambda part: part.to_sparse(), lambda part: part.to("meta"),
    lambda part: part[:1].expand(2**40, *part.shape[1:]),
]  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        put("children", (3, 0), 3), put("children", (3, 1), 0), put("children", (0, 0), 2**31 - 1),
        put("children", (0, 0), -(2**31)), put("roots", 2, 1), put("roots", 1, -(2**20)),
        put("feature", 4, 3), put("feature", 4, -1), put("feature", 4, -(2**31)),
        put("threshold", 2, float("nan")), put("threshold", 2, float("inf")),
        put("value", (1, 0), float("nan")), put("value", (1, 0), -float("inf")),
        *[swap(name, change) for name in NAMES for change in CHANGES],
        swap("roots", torch.zeros_like), swap("children", torch.zeros_like),
        swap("children", lambda part: part[:, :1].contiguous()),
        swap("value", lambda part: part[:, :0].contiguous()),
        swap("num_inputs", lambda part: part - 1), swap("num_inputs", torch.zeros_like),
        swap("num_inputs", lambda part: -part), swap("num_inputs", lambda part: part[None]),
        swap("num_inputs", lambda part: part.double()), swap("num_inputs", int),
        lambda state: state.pop("feature"), lambda state: state.update(more=state["roots"]),
    ],
)  # fmt: skip
def test_damaged_states_are_refused(state, damage):
    Forest.from_state(state)
    damage(state)
    with pytest.raises(ValueError, match=r"state of a forest must|no forest, or a damaged one"):
        Forest.from_state(state)


@pytest.mark.parametrize("other", [None, [], "forest", {}])
def test_what_is_no_state_is_refused(other):
    with pytest.raises(ValueError, match="The state of a forest must be a dict of num_inputs"):
        Forest.from_state(other)


def test_a_leaf_alone_needs_inputs_too():
    forest, _ = grown(np.ones((5, 1)), np.arange(5.0))
    state = forest.state() | {"num_inputs": torch.tensor(0)}
    with pytest.raises(ValueError, match="0 inputs"):
        Forest.from_state(state)


def test_any_other_child_is_refused(state):
    rng = np.random.default_rng(0)
    inner, leaves = len(state["feature"]), len(state["value"])
    for _ in range(500):
        damaged = {name: part.clone() for name, part in state.items()}
        part = damaged["roots" if rng.random() < 0.1 else "children"].view(-1)
        place, number = rng.integers(len(part)), int(rng.integers(-leaves - 3, inner + 3))
        if part[place] != number:
            part[place] = number
            with pytest.raises(ValueError, match="damaged"):
                Forest.from_state(damaged)


def test_what_passes_can_be_walked_down(state):
    rng = np.random.default_rng(0)
    X = data(20, seed=1)[0]
    passed = 0
    for _ in range(500):  # children change places: a forest, or a cycle
        damaged = {name: part.clone() for name, part in state.items()}
        part = damaged["children"].view(-1)
        places = torch.as_tensor(rng.choice(len(part), size=rng.integers(2, 4), replace=False))
        part[places] = part[places.roll(1)]
        try:
            forest = Forest.from_state(damaged)
        except ValueError:
            continue
        passed += 1
        assert np.isfinite(forest.moments(X)).all()
    assert 0 < passed < 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trees": 0}, "num_trees must be at least 1"),
        ({"num_trees": 2.0}, "num_trees must be an integer"),
        ({"min_samples_leaf": 0}, "min_samples_leaf must be at least 1"),
        ({"max_samples": 0}, "max_samples must be at least 1"),
        ({"seed": None}, "seed must be an integer"),
        ({"n_jobs": 0}, "n_jobs must be at least 1"),
        ({"X": np.ones(80)}, "X must have rows and columns"),
        ({"X": np.ones((80, 0))}, "X must have rows and columns"),
        ({"X": np.full((80, 1), np.nan)}, "X must be finite"),
        ({"X": np.ones((79, 1))}, "X has 79 rows, but y 80"),
        ({"y": np.full(80, np.inf)}, "y must be finite"),
        ({"y": np.ones((80, 1, 1))}, "y must be"),
        ({"y": np.ones((80, 0))}, "y must be"),
        ({"X": np.ones((0, 2)), "y": np.ones(0)}, "At least two rows must count, but 0 do"),
        ({"sample_weight": np.ones(79)}, r"sample_weight must be \[80\]"),
        ({"sample_weight": -np.ones(80)}, "sample_weight must be finite and not negative"),
        ({"sample_weight": np.full(80, np.inf)}, "sample_weight must be finite"),
        ({"sample_weight": np.zeros(80)}, "At least two rows must count, but 0 do"),
        ({"sample_weight": np.arange(80) == 3}, "At least two rows must count, but 1 do"),
        ({"X": np.ones((1, 2)), "y": np.ones(1)}, "At least two rows must count, but 1 do"),
    ],
)
def test_arguments_are_checked(options, message):
    X, y = data()
    arguments = {"X": X, "y": y, "num_trees": 5} | options
    with pytest.raises(ValueError, match=message):
        grown(**arguments)


def test_new_rows_are_checked():
    forest, _ = grown(*data())
    for method in (forest.moments, forest.predictions):
        with pytest.raises(ValueError, match="X has 2 columns; the forest knows 3"):
            method(np.ones((4, 2)))
        with pytest.raises(ValueError, match="X must be finite"):
            method(np.full((4, 3), np.nan))


def test_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    monkeypatch.delitem(sys.modules, "pyro_dgp.forests")
    with pytest.raises(ImportError, match=r"pip install 'pyro_dgp\[sklearn\]'"):
        importlib.import_module("pyro_dgp.forests")
