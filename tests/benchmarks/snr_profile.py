"""What a profile of the encoder's gradient costs on the two-layer model of the demo data.

python -m tests.benchmarks.snr_profile ratio     Q = 1000, K = 10: the loop against batches
python -m tests.benchmarks.snr_profile memory    Q = 1000, K = 1000: time and peak memory
"""

import argparse
import resource
import time

from pyro_dgp.experiments.reproduce.encoders import ESTIMATORS, encoder_sites
from pyro_dgp.experiments.reproduce.study import demo_config, some_data
from pyro_dgp.experiments.runs import train
from pyro_dgp.infer import SNRProfiler


def profile_seconds(dgp, X, y, estimator, K, num_draws, batch):
    sites = encoder_sites(dgp, X, y)
    profiler = SNRProfiler(
        dgp.model, dgp.guide, ESTIMATORS[estimator](K=K), num_draws, sites, seed=0, batch=batch
    )
    start = time.perf_counter()
    profile = profiler.run(X, y)
    return time.perf_counter() - start, profile.mean_snr()


def ratio(dgp, X, y, num_draws, num_rounds):
    for estimator in ESTIMATORS:
        for _ in range(num_rounds):  # in turn: noise is large
            (loop, snr), (batches, same) = (
                profile_seconds(dgp, X, y, estimator, 10, num_draws, batch)
                for batch in (False, True)
            )
            print(
                f"{estimator:<5} Q = {num_draws}, K = 10: loop {loop:.1f} s (SNR {snr:.3f}), "
                f"batches {batches:.2f} s (SNR {same:.3f}), ratio {loop / batches:.0f}"
            )


def memory(dgp, X, y, num_draws):
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before = peak()
    for estimator in ESTIMATORS:
        seconds, snr = profile_seconds(dgp, X, y, estimator, 1000, num_draws, True)
        print(
            f"{estimator:<5} Q = {num_draws}, K = 1000: {seconds:.1f} s (SNR {snr:.3f}), peak "
            f"{peak():.0f} MiB, {before:.0f} before"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ratio", "memory"])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="of training before")
    options = parser.parse_args()
    config = demo_config(options.steps)
    dgp, _ = train(config, progress=False)
    _, X, y = some_data(config, 1)
    if options.what == "ratio":
        ratio(dgp, X, y, options.draws, options.rounds)
    else:
        memory(dgp, X, y, options.draws)
