"""Fits in processes, with one progress bar, and with Ctrl-C as for fits in turn."""

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from pickle import PicklingError
from typing import Protocol, TypeVar

import joblib
import numpy as np

from pyro_dgp.infer.training.interrupt import Interrupt
from pyro_dgp.sklearn.threads import one_thread

__all__ = ["Job", "in_processes"]

T = TypeVar("T", covariant=True)

# Seconds between two looks at the steps that the processes have done, and at Ctrl-C.
_EVERY = 0.2


class Job(Protocol[T]):
    """A fit that calls a function after every step, which may raise ``KeyboardInterrupt``."""

    def run(self, update: Callable[[int], object]) -> T: ...


class _Board:
    """Numbers that processes share in a file: whether to end, and the steps of every job."""

    def __init__(self, path: Path) -> None:
        self.numbers = np.memmap(path, np.int64, "r+")

    @classmethod
    def of(cls, path: Path, num_jobs: int) -> "_Board":
        path.write_bytes(bytes(8 * (1 + num_jobs)))
        return cls(path)

    @property
    def ended(self) -> bool:
        return bool(self.numbers[0])

    def end(self) -> None:
        self.numbers[0] = 1

    def add(self, job: int, num_steps: int) -> None:
        self.numbers[1 + job] += num_steps

    @property
    def num_steps(self) -> int:
        return int(self.numbers[1:].sum())


def in_processes(
    jobs: Sequence[Job[T]], n_jobs: int, update: Callable[[int], object]
) -> Iterator[T | None]:
    """Runs jobs in processes, and yields their results in order.

    The first Ctrl-C ends the jobs that run, after a step; those that have not begun give None. The
    second one ends the processes, and raises ``KeyboardInterrupt``.

    :param jobs: The jobs, which can be pickled.
    :param int n_jobs: Number of processes.
    :param update: A function that is called now and then with the number of new steps.
    :raises ValueError: If a job cannot be pickled.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Interrupt() as pressed:
        path = Path(folder, "board")
        board = _Board.of(path, len(jobs))
        parallel = joblib.Parallel(n_jobs, backend="loky", return_as="generator")
        run = joblib.delayed(_run)
        with _watched(board, pressed, update):
            try:
                yield from parallel(run(job, i, path) for i, job in enumerate(jobs))  # pyright: ignore[reportReturnType]
            except PicklingError as error:
                raise ValueError(
                    "A parameter, such as an estimator in features, cannot be sent to other "
                    "processes: use n_jobs=1."
                ) from error
            except BrokenProcessPool as error:
                # A process that Ctrl-C reached before its job began has died of it.
                raise (KeyboardInterrupt if pressed.seen else error) from None


@contextmanager
def _watched(board: _Board, pressed: Interrupt, update: Callable[[int], object]) -> Iterator[None]:
    """Keeps the bar and the board up to date, while the main thread waits for results."""
    done = threading.Event()

    def watch() -> None:
        shown = 0
        while True:
            last = done.wait(_EVERY)
            if pressed.seen:
                board.end()
            now = board.num_steps
            update(now - shown)
            shown = now
            if last:
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _run(job: Job[T], number: int, path: Path) -> T | None:
    """Runs a job in a process of its own."""
    # Terminals send Ctrl-C to all processes; here, only the board counts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    board = _Board(path)

    def update(num_steps: int) -> None:
        board.add(number, num_steps)
        if board.ended:
            raise KeyboardInterrupt

    try:
        with one_thread():
            return None if board.ended else job.run(update)
    except KeyboardInterrupt:  # before the first step
        return None
