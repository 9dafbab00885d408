"""The study: data sets, training runs, metrics and figures."""

from pyro_dgp.experiments.datasets import Split
from pyro_dgp.experiments.many_runs import sweep
from pyro_dgp.experiments.runs import RunConfig, load_record, run, train

__all__ = ["RunConfig", "Split", "load_record", "run", "sweep", "train"]
