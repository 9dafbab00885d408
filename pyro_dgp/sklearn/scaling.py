"""Standardising, with the errors that a user understands."""

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

__all__ = ["fitted_scaler", "mean_and_scale", "numbers", "scaler_of", "transformed"]


def fitted_scaler(
    name: str, values: np.ndarray, weights: np.ndarray | None = None
) -> StandardScaler:
    """A ``StandardScaler``.

    :param str name: Of the argument, for messages.
    :param numpy.ndarray values: [N, D].
    :param numpy.ndarray weights: [N], or None.
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
    """The scaler with these numbers, [D] each."""
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = mean.numpy(), scale.numpy()
    scaler.var_ = scaler.scale_**2
    scaler.n_features_in_ = len(mean)  # pyright: ignore[reportAttributeAccessIssue]
    return scaler


def mean_and_scale(scaler: StandardScaler) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted and divided by, [D] each."""
    return np.asarray(scaler.mean_), np.asarray(scaler.scale_)


def transformed(name: str, scaler: StandardScaler, values: np.ndarray) -> np.ndarray:
    """Standardised values, [N, D].

    :raises ValueError: If one of them is further away than single precision can square.
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
    """Of which :func:`scaler_of` makes it again."""
    mean, scale = mean_and_scale(scaler)
    return {"mean": torch.as_tensor(mean), "scale": torch.as_tensor(scale)}
