"""Which experiments cannot be run, and which tables cannot be made."""

import pytest

from pyro_dgp.experiments import datasets, metrics
from pyro_dgp.experiments.reproduce.log_likelihoods import table1
from pyro_dgp.experiments.runs import RunConfig, run
from tests.gp.models import data, small
from tests.refusals import refusals

pytestmark = pytest.mark.whole


def of_options(**options):
    return lambda: RunConfig("forest", **options)


def scored(change):
    def call():
        X, y = data()
        metrics.test_log_likelihood(small(X, y), X, change(y), 5)

    return call


@refusals(
    {
        "another loss": (of_options(loss="iwae"), ValueError, "loss must be one of"),
        "another dtype": (of_options(dtype="int8"), ValueError, "dtype must be one of"),
        "another schedule": (
            of_options(schedule="other"),
            ValueError, "schedule must be one of steps, cosine, fast, not 'other'",
        ),
        "a rate that is a text": (
            of_options(lr="0.1"), TypeError, 'lr must be a number, but it is "0.1"'
        ),
        "a truth value that is a text": (
            of_options(learned_qz="no"), TypeError, "learned_qz must be true or false"
        ),
        "samples that are an object": (
            of_options(K=KeyError), TypeError, "K must be an integer, but it is .*KeyError"
        ),
        "natural gradients beyond the solution": (
            of_options(natural_lr=1.5), ValueError, "natural_lr must be at most 1"
        ),
        "a column of targets": (scored(lambda y: y[:, None]), ValueError, "does not fit X"),
        "fewer targets than rows": (scored(lambda y: y[:5]), ValueError, "does not fit X"),
        "another data set": (
            lambda: datasets.load("woods"),
            ValueError, "Unknown data set 'woods'; there are demo, demo_published, forest",
        ),
        "a negative split": (
            lambda: datasets.load("demo", -1), ValueError, "split must not be negative"
        ),
        "splits of one estimator": (
            lambda: table1({"a": {"reg": {1: 1.0, 2: 3.0}, "dreg": {1: 1.0}}}),
            ValueError, "a: split 2 is there under one estimator only",
        ),
        "outliers within no deviation": (
            lambda: table1({"a": {"reg": {1: 1.0}, "dreg": {1: 1.0}}}, outliers=0.0),
            ValueError, "outliers must be a positive number, but it is 0.0",
        ),
        "outliers within no number": (
            lambda: table1({"a": {"reg": {1: 1.0}, "dreg": {1: 1.0}}}, outliers=float("nan")),
            ValueError, "outliers must be a positive number, but it is nan",
        ),
        "outliers only": (
            lambda: table1({"a": {e: {1: 1.0, 2: 3.0} for e in ("reg", "dreg")}}, outliers=0.1),
            ValueError, "a: outliers=0.1 leaves no split",
        ),
        "a table of nothing": (lambda: table1({}), ValueError, "no log-likelihoods"),
    }
    | {
        f"the device {device}": (
            lambda device=device: run(RunConfig("demo", device=device, num_steps=1)),
            ValueError, f"device '{device}' cannot be used",
        )
        for device in ("foo", "cuda:99")
    }
)  # fmt: skip
def test_experiments(call, error, words):
    with pytest.raises(error, match=words):
        call()
