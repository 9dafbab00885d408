"""Reproduction of the table and figures of the paper, and further studies."""

from pyro_dgp.experiments.reproduce.predictions import PREDICTION_STUDIES
from pyro_dgp.experiments.reproduce.snr import SNR_STUDIES
from pyro_dgp.experiments.reproduce.study import demo_config, some_data, trained

__all__ = ["STUDIES", "demo_config", "some_data", "trained"]

#: Studies by the name of the paper's table or figure, or by what they compare.
STUDIES = dict(sorted((SNR_STUDIES | PREDICTION_STUDIES).items()))
