"""Start-up and planning times, each beside bare ``python -c pass`` measured in the same run.

    python benchmarks/startup.py [--repeat N]

Prints medians in seconds and as a multiple of bare Python. The aims are for a machine whose bare start is 0.012 s:
``--help`` 0.15 s, a plan of three ranks 0.25 s, 1,024 nodes 1.5 s and under 5 MB.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

BARE_REFERENCE_S = 0.012
MAIN_JOB = ["--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro"]


def measure(argv: list[str], repeat: int) -> tuple[float, int]:
    """Median seconds of ``argv``, and the size of its output in bytes."""
    times = []
    size = 0
    for _ in range(repeat):
        begin = time.perf_counter()
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
        times.append(time.perf_counter() - begin)
        size = len(done.stdout)
    return statistics.median(times), size


def plan_argv(prefill: int, decode: int) -> list[str]:
    """The command that plans so many workers, one a node."""
    counts = ["--prefill", str(prefill), "--decode", str(decode)]
    return [sys.executable, "-m", "disagg_run", "plan", *MAIN_JOB, *counts, "--format", "json"]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    cases: list[tuple[str, list[str], float | None]] = [
        ("disagg-run --help", [sys.executable, "-m", "disagg_run", "--help"], 0.15),
        ("plan, 3 ranks", plan_argv(2, 1), 0.25),
        ("plan, 64 nodes", plan_argv(32, 32), None),
        ("plan, 256 nodes", plan_argv(128, 128), None),
        ("plan, 1,024 nodes", plan_argv(512, 512), 1.5),
    ]
    bare, _ = measure([sys.executable, "-c", "pass"], repeat)
    print(f"{'what':<20}{'median s':>10}{'x bare':>8}{'aim x bare':>12}{'bytes':>12}")
    print(f"{'python -c pass':<20}{bare:>10.3f}{1:>8.1f}{'':>12}{'':>12}")
    for name, argv, aim in cases:
        seconds, size = measure(argv, repeat)
        shown_aim = f"{aim / BARE_REFERENCE_S:.1f}" if aim else ""
        print(f"{name:<20}{seconds:>10.3f}{seconds / bare:>8.1f}{shown_aim:>12}{size:>12,}")


if __name__ == "__main__":
    main()
