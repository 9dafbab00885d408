"""The paper's studies of signal-to-noise ratios: Figures 1, 2, 3, 8 and 9."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_dgp._files import written_whole
from pyro_dgp.experiments import figures
from pyro_dgp.experiments.reproduce import encoders
from pyro_dgp.experiments.reproduce.study import Size, Study, some_data, trained
from pyro_dgp.experiments.runs import checkpoint_path
from pyro_dgp.infer import SNRPoint, SNRSweep, snr_sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SNR_STUDIES"]


# Figure 1


def _entries(size: Size, folder: Path, progress: bool) -> SNRSweep:
    config = size.config(size.only("datasets"), size.only("layers"))
    dgp = trained(config, folder, progress)
    _, X, y = some_data(config, 1)
    entries = encoders.random_entries(dgp, X, y)
    points = []
    for K in tqdm(size.samples, disable=not progress, unit="K"):
        path = folder / f"{config.name}_entries_Q{size.draws}_K{K}.json"
        if not path.exists():
            encoders.snr_of_entries(dgp, X, y, entries, K, size.draws).save(path)
        points += SNRSweep.load(path).points
    return SNRSweep(points)


def _entries_table(sweep: SNRSweep) -> list[str]:
    lines = [f"{'parameter':<28} {'estimator':<9} {'K':>5} {'SNR':>9}  +-"]
    for p in sweep.points:
        lines.append(f"{p.group:<28} {p.estimator:<9} {p.K:>5} {p.snr:>9.4f}  {p.snr_error:.4f}")
    return lines


def _entries_figure(sweep: SNRSweep) -> "Figure":
    return figures.snr_figure(sweep, list(dict.fromkeys(p.group for p in sweep.points)))


# Figures 2 and 8


def _gradients(size: Size, folder: Path, progress: bool) -> dict[str, dict[int, Tensor]]:
    config = size.config(size.only("datasets"), size.only("layers"))
    dgp = trained(config, folder, progress)
    _, X, y = some_data(config, 1)
    site, index = entry = encoders.strongest_weight(dgp, X, y, max(size.samples))
    what = f"{site.split('$$$')[-1]}{list(index)}"
    draws: dict[str, dict[int, Tensor]] = {name: {} for name in encoders.ESTIMATORS}
    for K in size.samples:
        path = folder / f"{config.name}_gradients_{what}_Q{size.draws}_K{K}.pt"
        if not path.exists():
            found = encoders.gradient_draws(dgp, X, y, entry, K, size.draws, progress=progress)
            with written_whole(path) as temporary:
                torch.save(found, temporary)
        for name, values in torch.load(path, weights_only=True).items():
            draws[name][K] = values
    return draws


def _gradients_table(draws: dict[str, dict[int, Tensor]]) -> list[str]:
    lines = ["estimator     K        mean   deviation       SNR"]
    for name, by_K in draws.items():
        for K, g in by_K.items():
            mean, std = g.mean().item(), g.std().item()
            lines.append(f"{name:<9} {K:>5} {mean:>11.4g} {std:>11.4g} {abs(mean) / std:>9.4f}")
    return lines


# Figure 3


def _depths(size: Size, folder: Path, progress: bool) -> dict[str, dict[int, SNRSweep]]:
    """By data set and depth."""
    found: dict[str, dict[int, SNRSweep]] = {}
    for dataset in size.datasets:
        for num_layers in size.layers:
            config = size.config(dataset, num_layers)
            dgp = trained(config, folder, progress)
            rows, X, y = some_data(config, size.points)
            paths = [folder / f"{config.name}_snr_row{row}.json" for row in rows]
            found.setdefault(dataset, {})[num_layers] = encoders.snr_against_K(
                dgp, X, y, size.samples, size.draws, paths=paths, progress=progress
            )
    return found


def _depths_table(found: dict[str, dict[int, SNRSweep]]) -> list[str]:
    lines = []
    for dataset, by_depth in found.items():
        for num_layers, sweep in by_depth.items():
            for name in encoders.ESTIMATORS:
                points = sweep.select(estimator=name, group="encoder")
                snr = "  ".join(f"K={p.K}: {p.snr:.4f}" for p in points)
                lines.append(
                    f"{dataset:<10} {num_layers} layers  {name:<5} {snr}  {_slope(points)}"
                )
    return lines


def _slope(points: list[SNRPoint]) -> str:
    try:
        slope, error = SNRSweep(points).slope()
    except ValueError:
        return "(no signal beyond its error to fit an order to)"
    return f"~ K^({slope:.2f} +- {error:.2f})"


# Figure 9


def _along_training(
    size: Size, folder: Path, progress: bool
) -> dict[str, dict[int, list[SNRPoint]]]:
    """By data set and step, for both estimators and all seeds, of one minibatch's gradient."""
    size.only("samples")  # or seeds would be mixed with them
    found: dict[str, dict[int, list[SNRPoint]]] = {}
    steps = sorted({round(size.steps * share) for share in (0, 0.01, 0.03, 0.1, 0.3, 1)})
    for dataset in size.datasets:
        found[dataset] = {step: [] for step in steps}
        for seed in range(size.seeds):
            config = size.config(dataset, size.only("layers"), seed)
            _, X, y = some_data(config, config.batch_size)
            before: Path | None = None
            for step in steps:
                checkpoint = checkpoint_path(config, folder, step)
                if before is not None and before.exists() and not checkpoint.exists():
                    with written_whole(checkpoint) as temporary:
                        Path(temporary).write_bytes(before.read_bytes())
                dgp = trained(config, folder, progress, step)
                before = checkpoint
                sweep = snr_sweep(
                    dgp.model, dgp.guide, (X, y), encoders.ESTIMATORS, size.samples,
                    groups={"encoder": encoders.encoder_sites(dgp, X, y)}, num_draws=size.draws,
                    path=folder / f"{config.name}_at{step}_batch_snr.json", progress=progress,
                )  # fmt: skip
                found[dataset][step] += sweep.points
    return found


def _along_training_table(found: dict[str, dict[int, list[SNRPoint]]]) -> list[str]:
    lines = [f"{'data set':<10} {'step':>7} {'estimator':<9} {'SNR by seed'}"]
    for dataset, by_step in found.items():
        for step, points in by_step.items():
            for name in encoders.ESTIMATORS:
                snr = "  ".join(f"{p.snr:.4f}" for p in points if p.estimator == name)
                lines.append(f"{dataset:<10} {step:>7} {name:<9} {snr}")
    return lines


#: By name.
SNR_STUDIES = {
    "figure1": Study(
        Size(samples=(1, 5, *range(10, 101, 10))), _entries, _entries_table, _entries_figure,
        options=("draws", "samples"),
    ),
    "figure2": Study(
        Size(draws=10_000), _gradients, _gradients_table, figures.histogram_figure,
        options=("draws", "samples"),
    ),
    "figure3": Study(
        Size(("demo", "forest", "solar"), (1, 2, 3, 4), samples=(1, 10, 100, 1000)),
        _depths, _depths_table, figures.depth_figure, options=("points", "draws", "samples"),
    ),
    "figure8": Study(
        Size(draws=10_000), _gradients, _gradients_table,
        lambda draws: figures.histogram_figure(draws, common_axis=False),
        options=("draws", "samples"),
    ),
    "figure9": Study(
        Size(("forest", "solar"), train_K=50, steps=3000, draws=200, samples=(50,), seeds=2),
        _along_training, _along_training_table, figures.training_figure,
        options=("draws", "samples", "seeds"),
    ),
}  # fmt: skip
