"""Histograms of gradients."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pytest
import torch

from pyro_dgp.experiments.figures import histogram_figure


def test_histograms_and_normal_curves_have_one_scale():
    """Of normal draws, also where the common axis, that of the largest K, shows few of them."""
    draws = {K: sd * torch.randn(20_000) for K, sd in ((100, 0.5), (10, 1.0), (1, 20.0))}
    figure = histogram_figure({"DReG": draws}, common_axis=True)
    for axis, gradients in zip(figure.axes, draws.values(), strict=True):
        low, high = axis.get_xlim()
        assert high - low < 12
        area = sum(p.get_height() * p.get_width() for p in axis.patches)
        inside = ((gradients >= low) & (gradients <= high)).double().mean().item()
        assert area == pytest.approx(inside, rel=1e-6)
        curve = axis.lines[0].get_ydata()
        heights = [p.get_height() for p in axis.patches]
        assert sum(heights) / len(heights) == pytest.approx(curve.mean(), rel=0.1)
    plt.close(figure)


def test_a_gradient_that_is_always_zero_is_drawn():
    figure = histogram_figure({"DReG": {1: torch.zeros(100)}}, common_axis=False)
    figure.canvas.draw()
    assert figure.axes[0].get_title().endswith("SNR -")
    plt.close(figure)
