"""Everything of the paper that can be made again, and studies beside it."""

from pyro_dgp.experiments.prediction_studies import PREDICTION_STUDIES
from pyro_dgp.experiments.snr_studies import SNR_STUDIES

__all__ = ["STUDIES"]

#: Studies by the name of the paper's table or figure, or by what they compare.
STUDIES = dict(sorted((SNR_STUDIES | PREDICTION_STUDIES).items()))
