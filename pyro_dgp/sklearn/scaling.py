"""Standardisation of inputs and targets, with clear errors."""

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

__all__ = ["fitted_scaler", "mean_and_scale", "numbers", "scaler_of", "transformed"]


def fitted_scaler(
    name: str, values: np.ndarray, weights: np.ndarray | None = None
) -> StandardScaler:
    """A ``StandardScaler``.

    :param str name: Name of the argument, for error messages.
    :param numpy.ndarray values: Values to be standardised, [N, D].
    :param numpy.ndarray weights: Weights of the rows, [N], or None.
    :raises ValueError: If values are too large for a mean and a standard deviation.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(values, sample_weight=weights)
    mean, scale = mean_and_scale(scaler)
    bad = ~(np.isfinite(mean) & np.isfinite(scale))
    if bad.any():
        raise ValueError(
            f"{name}, column {int(bad.argmax())}: the values are too large for a mean and a "
            "standard deviation in double precision. Change its unit."
        )
    return scaler


def scaler_of(mean: torch.Tensor, scale: torch.Tensor) -> StandardScaler:
    """The scaler with given means and standard deviations, [D] each."""
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = mean.numpy(), scale.numpy()
    scaler.var_ = scaler.scale_**2
    scaler.n_features_in_ = len(mean)  # pyright: ignore[reportAttributeAccessIssue]
    return scaler


def mean_and_scale(scaler: StandardScaler) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of a scaler, [D] each."""
    return np.asarray(scaler.mean_), np.asarray(scaler.scale_)


def transformed(name: str, scaler: StandardScaler, values: np.ndarray) -> np.ndarray:
    """Standardised values, [N, D].

    :param str name: Name of the argument, for error messages.
    :param StandardScaler scaler: A fitted scaler.
    :param numpy.ndarray values: Values, [N, D].
    :raises ValueError: If the square of one of them would overflow in single precision.
    """
    with np.errstate(over="ignore"):
        scaled = np.asarray(scaler.transform(values))
    if not (np.abs(scaled) < 1e15).all():
        column = int((np.abs(scaled) < 1e15).all(0).argmin())
        raise ValueError(
            f"{name}, column {column}: a value is more than 1e15 standard deviations of the "
            "training rows away from their mean. Remove the outlier, or transform the column."
        )
    return scaled


def numbers(scaler: StandardScaler) -> dict[str, torch.Tensor]:
    """Arguments of :func:`scaler_of` that give the same scaler."""
    mean, scale = mean_and_scale(scaler)
    return {"mean": torch.as_tensor(mean), "scale": torch.as_tensor(scale)}
