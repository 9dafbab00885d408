"""One target of a regressor of several targets."""

from collections.abc import Iterator

from numpy.typing import ArrayLike

from pyro_dgp.sklearn.regressor import LatentDGPRegressor, Predictive


class OneTarget:
    """What pictures need of a model: predictive distributions, names of inputs, training history.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of several targets.
    :param int index: Index of the target.
    """

    def __init__(self, model: LatentDGPRegressor, index: int) -> None:
        self.model, self.index = model, index
        self.latent_dim, self.history_ = model.latent_dim, model.history_
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_

    def predictive(self, X: ArrayLike, z: ArrayLike | None = None) -> Predictive:
        """The predictive distribution of the target, in its units."""
        return self.model.predictive(X, z).marginal(self.index)

    def predictives(self, X: ArrayLike) -> Iterator[Predictive]:
        """Predictive distributions of the target, in chunks of rows."""
        return (p.marginal(self.index) for p in self.model.predictives(X))
