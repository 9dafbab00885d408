"""A regressor of several targets, looked at for one of them."""


class OneTarget:
    """As pictures look at a model: predictive distributions, names of inputs, training.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of several targets.
    :param int index: Of the target.
    """

    def __init__(self, model, index: int) -> None:
        self.model, self.index = model, index

    def __getattr__(self, name: str):
        if name not in ("latent_dim", "history_", "feature_names_in_"):
            raise AttributeError(name)
        return getattr(self.model, name)

    def predictive(self, X, z=None):
        """Of the target."""
        return self.model.predictive(X, z).marginal(self.index)

    def predictives(self, X):
        """Of the target, some rows at a time."""
        return (p.marginal(self.index) for p in self.model.predictives(X))
