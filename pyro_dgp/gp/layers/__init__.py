"""The layers of a deep GP."""

from pyro_dgp.gp.layers.base import Layer
from pyro_dgp.gp.layers.gp import GPLayer
from pyro_dgp.gp.layers.latent import LatentLayer

__all__ = ["GPLayer", "LatentLayer", "Layer"]
