"""A regressor of several targets, looked at for one of them."""

from collections.abc import Iterator

from numpy.typing import ArrayLike

from pyro_dgp.sklearn.regressor import LatentDGPRegressor, Predictive


class OneTarget:
    """As pictures look at a model: predictive distributions, names of inputs, training.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of several targets.
    :param int index: Of the target.
    """

    def __init__(self, model: LatentDGPRegressor, index: int) -> None:
        self.model, self.index = model, index
        self.latent_dim, self.history_ = model.latent_dim, model.history_
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_

    def predictive(self, X: ArrayLike, z: ArrayLike | None = None) -> Predictive:
        """Of the target."""
        return self.model.predictive(X, z).marginal(self.index)

    def predictives(self, X: ArrayLike) -> Iterator[Predictive]:
        """Of the target, some rows at a time."""
        return (p.marginal(self.index) for p in self.model.predictives(X))
