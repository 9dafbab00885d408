"""A deep GP as the surrogate of a BoTorch acquisition function.

Needs BoTorch: ``pip install 'pyro_dgp[botorch]'``.
"""

try:
    from botorch.models.ensemble import EnsembleModel
    from botorch.models.transforms.input import InputTransform
    from botorch.models.transforms.outcome import OutcomeTransform
except ImportError as error:
    raise ImportError("pyro_dgp.botorch needs BoTorch: pip install 'pyro_dgp[botorch]'.") from error

import torch
from torch import Tensor

from pyro_dgp.gp import LatentDGP

__all__ = ["FunctionDraws"]


class FunctionDraws(EnsembleModel):
    """S functions drawn from a trained model, as a BoTorch ensemble.

    The posterior at X, ``batch_shape x q x d``, has the values of the S functions, ``batch_shape x
    S x q x m``, as joint draws over all rows: every call evaluates the same functions. They can be
    used with Monte Carlo acquisition functions (``qLogExpectedImprovement``,
    ``qUpperConfidenceBound``,
    ...); analytic ones need a normal posterior, which a deep GP does not have. The functions are
    those of the likelihood, without its noise, and of the model at construction: create a new
    adapter after further training.

    :param LatentDGP dgp: A trained model.
    :param int num_functions: Number S of functions.
    :param int num_features: Number of random features of the prior of each GP, an even number.
    :param input_transform: A BoTorch transform from X to the inputs of training.
    :param outcome_transform: The BoTorch transform that produced the targets of training; it is
        inverted.
    :param torch.Generator generator: Source of the draws, on the model's device.
    :raises TypeError: If ``dgp`` is not a :class:`~pyro_dgp.LatentDGP`.
    :raises NotImplementedError: If no functions can be drawn from the model
        (:meth:`LatentDGP.draw_functions`).
    """

    def __init__(
        self,
        dgp: LatentDGP,
        num_functions: int = 256,
        *,
        num_features: int = 1000,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(dgp, LatentDGP):
            raise TypeError(f"dgp must be a LatentDGP, but it is a {type(dgp).__name__}.")
        self._functions = dgp.draw_functions(
            num_functions, num_features=num_features, generator=generator
        )
        last = dgp.layers[-1]
        self._num_outputs = last.width(last.input_dim or 0)
        # Under BoTorch's own name, a warning would say that there are no training inputs.
        self._input_transform = input_transform
        self._like = next(dgp.parameters()).detach().new_empty(())
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        # In training mode, transforms would learn from the inputs of predictions.
        self.eval()

    @property
    def batch_shape(self) -> torch.Size:
        """One model: no batch."""
        return torch.Size()

    def forward(self, X: Tensor) -> Tensor:
        """
        :param torch.Tensor X: [..., q, d], before the input transform.
        :returns: [..., S, q, m], in the units of the targets that the model was trained with.
        """
        values = X if self._input_transform is None else self._input_transform(X)
        # BoTorch computes in double precision, models mostly in single.
        found = self._functions(values.to(self._like)).movedim(0, -3)
        return found.to(X) if X.is_floating_point() else found
