"""The study: data sets, training runs, metrics and figures."""

from pyro_dgp.experiments.config import RunConfig
from pyro_dgp.experiments.datasets import Split, load
from pyro_dgp.experiments.many_runs import sweep
from pyro_dgp.experiments.reproduce.encoders import snr_against_K
from pyro_dgp.experiments.runs import load_record, run, train

__all__ = ["RunConfig", "Split", "load", "load_record", "run", "snr_against_K", "sweep", "train"]
