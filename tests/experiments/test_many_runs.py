import json
from pathlib import Path

import joblib
import pyro
import pytest
from joblib.externals.loky import get_reusable_executor

from pyro_dgp.experiments.many_runs import sweep
from pyro_dgp.experiments.runs import RunConfig, record_path

pytestmark = pytest.mark.whole

DATA = Path(__file__).parents[1] / "data"
CONFIGS = [
    RunConfig("solar", split=split, loss=loss, K=2, num_layers=1, num_inducing=8, num_steps=3,
              num_test_samples=10)
    for split in (0, 1)
    for loss in ("reg", "dreg")
]  # fmt: skip


@pytest.fixture(autouse=True)
def _uci(monkeypatch, tmp_path):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Processes that other tests have left know nothing of it.
    get_reusable_executor().shutdown()


def without_times(records):
    return [{k: v for k, v in r.items() if not k.startswith("seconds")} for r in records]


def test_processes_give_the_same_records_as_a_loop(tmp_path):
    loop = sweep(CONFIGS, tmp_path / "loop", progress=False)
    processes = sweep(CONFIGS, tmp_path / "processes", num_jobs=2, progress=False)
    assert without_times(processes) == without_times(loop)
    assert [r["config"]["loss"] for r in loop] == ["reg", "dreg", "reg", "dreg"]
    assert not list(pyro.get_param_store())


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_records(tmp_path):
    distributed = pytest.importorskip("distributed")
    loop = sweep(CONFIGS, tmp_path / "loop", progress=False)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as c,
        distributed.Client(c),
        joblib.parallel_config(backend="dask"),
    ):
        cluster = sweep(CONFIGS, tmp_path / "cluster", num_jobs=2, progress=False)
    assert without_times(cluster) == without_times(loop)


def test_a_failure_does_not_stop_the_rest(tmp_path, capsys):
    configs = [RunConfig("protein", num_steps=1), CONFIGS[0]]
    failed, done = sweep(configs, tmp_path)
    assert failed["error"].startswith("FileNotFoundError")
    assert done["steps_done"] == 3
    assert "2/2" in capsys.readouterr().err
    written = record_path(CONFIGS[0], tmp_path).stat().st_mtime_ns
    sweep(configs, tmp_path)
    assert "1/1" in capsys.readouterr().err  # only the failed one is tried again
    assert record_path(CONFIGS[0], tmp_path).stat().st_mtime_ns == written
    assert json.loads(record_path(configs[0], tmp_path).read_text()) == failed
