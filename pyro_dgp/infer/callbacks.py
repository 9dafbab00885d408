"""Callbacks for :func:`~pyro_dgp.infer.fit`."""

from collections.abc import Callable
from pathlib import Path

__all__ = ["tensorboard"]


def tensorboard(folder: str | Path, every: int = 10) -> Callable[[int, float], None]:
    """Logs the loss for TensorBoard: ``fit(..., callback=tensorboard("logs"))``.

    :param folder: Where the event files go.
    :param int every: Log every so many steps.
    :raises ImportError: If TensorBoard is missing.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "Logging needs TensorBoard: pip install 'pyro_dgp[tensorboard]'."
        ) from error
    writer = SummaryWriter(str(folder))

    def log(step: int, loss: float) -> None:
        if step % every == 0:
            writer.add_scalar("loss", loss, step)

    return log
