"""Many runs in parallel, on one machine or on a cluster."""

from collections.abc import Sequence
from pathlib import Path

import pyro
import torch
from tqdm.auto import tqdm

from pyro_dgp._checks import check_jobs
from pyro_dgp._files import write_json
from pyro_dgp.experiments.config import RunConfig
from pyro_dgp.experiments.runs import failure, is_complete, load_record, record_path, run

__all__ = ["sweep"]


def sweep(
    configs: Sequence[RunConfig],
    folder: str | Path,
    num_jobs: int = 1,
    progress: bool = True,
) -> list[dict]:
    """Runs every configuration whose record is not in the folder yet, with joblib.

    Each run has one thread, so its numbers depend neither on the number of runs nor on where they
    are executed. Other backends than joblib's processes are possible: inside
    ``with joblib.parallel_config(backend="dask"):``, after ``distributed.Client(...)``, or
    ``"ray"``; workers must be processes and share the folder.

    :param configs: The configurations to run.
    :param folder: Folder for records and checkpoints, see
        :func:`~pyro_dgp.experiments.runs.run`.
    :param int num_jobs: Number of parallel runs; -1 for one per core.
    :param bool progress: Whether to show a progress bar with the remaining time.
    :returns: Records in the order of ``configs``. The record of a failed run has an ``error``, and
        the run is repeated by the next call.
    :raises ValueError: If ``num_jobs`` is out of range.
    :raises ImportError: If joblib is missing.
    """
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise ImportError("Sweeps need joblib: pip install 'pyro_dgp[experiments]'.") from error
    check_jobs("num_jobs", num_jobs)
    folder = Path(folder)
    missing = [config for config in configs if not is_complete(record_path(config, folder))]
    results = Parallel(n_jobs=num_jobs, return_as="generator_unordered")(
        delayed(_run)(config, folder) for config in missing
    )
    for _ in tqdm(results, total=len(missing), disable=not progress, unit="run"):
        pass
    return [load_record(record_path(config, folder))[1] for config in configs]


def _run(config: RunConfig, folder: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pyro.get_param_store().scope():  # else parameters would accumulate in a worker
            record, _ = run(config, folder, progress=False)
        if record["interrupted"]:
            raise KeyboardInterrupt
    except Exception as error:
        write_json(failure(config, error), record_path(config, folder))
    finally:
        torch.set_num_threads(threads)
