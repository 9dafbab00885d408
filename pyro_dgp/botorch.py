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
    """S functions drawn from a trained model: what BoTorch calls an ensemble.

    Its posterior at X, ``batch_shape x q x d``, has the S functions' values, ``batch_shape x S x q
    x m``, as joint draws over all rows: they are the same functions in every call. Monte Carlo
    acquisition functions (``qLogExpectedImprovement``, ``qUpperConfidenceBound``, ...) take them as
    they are; analytic ones need a normal posterior, which a deep GP does not have. The functions
    are the likelihood's, without its noise, and those of the model as it is now: make a new
    adapter after further training.

    :param LatentDGP dgp: A trained model.
    :param int num_functions: S.
    :param int num_features: Random features of each GP's prior, an even number.
    :param input_transform: A BoTorch transform from X to what the model was trained with.
    :param outcome_transform: The one that made the targets it was trained with; it is undone.
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
        # Not by BoTorch's name, under which it is warned of that there are no training inputs.
        self._input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform

    @property
    def batch_shape(self) -> torch.Size:
        """One model: no batch."""
        return torch.Size()

    def forward(self, X: Tensor) -> Tensor:
        """
        :param torch.Tensor X: [..., q, d], before the input transform.
        :returns: [..., S, q, m], in the units of the targets that the model was trained with.
        """
        if self._input_transform is not None:
            X = self._input_transform(X)
        return self._functions(X).movedim(0, -3)
