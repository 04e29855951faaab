"""What running costs: from ready to started, from a death to the end of all, an agent's CPU and memory, a log flood.

    python benchmarks/running.py [--ranks N] [--repeat N]

Launches of small real servers on loopback addresses. Beside each figure stands its aim.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.running.launched import Launched
from tests.running.plans import Launch


def row(what: str, value: str, aim: str = "") -> None:
    """Print one line of the table."""
    print(f"{what:<62}{value:>16}  {aim}", flush=True)


def launched(asked: Launch, **settings: float) -> Launched:
    """A launch in a directory of its own."""
    return Launched(asked.plan(), Path(tempfile.mkdtemp(prefix="disagg-run-bench-")), **settings)


def stamp(event: dict[str, str]) -> float:
    """An event's time in seconds."""
    return datetime.datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).timestamp()


def gate(repeat: int) -> None:
    """From the last server's readiness to the router's start."""
    gaps, found = [], []
    for index in range(repeat):
        launch = launched(Launch(decodes=2, words={"decode-1": ["--delay", 0.3 + index / 10]}))
        started = stamp(launch.event(0, "process.started", process="router"))
        last = launch.event(2, "process.ready", process="decode-1")
        gaps.append(started - stamp(last))
        found.append(last["after_s"])
        launch.kill(launch.process.pid, signal.SIGTERM)
        launch.end()
    row("last server ready -> router started, s, median", f"{statistics.median(gaps):.3f}", "0.15")
    row("the same, highest", f"{max(gaps):.3f}")


def death(repeat: int, ranks: int) -> None:
    """From a killed server to the end of every rank."""
    seconds = []
    for _ in range(repeat):
        launch = launched(Launch(decodes=ranks - 1))
        launch.serving()
        start = launch.kill(launch.pid(f"decode-{ranks - 2}"))
        assert launch.end() == 11
        seconds.append(time.monotonic() - start)
    row(f"process killed -> all of {ranks} ranks down, s, median", f"{statistics.median(seconds):.2f}", "2")
    row("the same, highest", f"{max(seconds):.2f}")


def serving(seconds: float) -> None:
    """An agent's share of a core and its memory while it serves."""
    launch = launched(Launch(decodes=2))
    launch.serving()
    time.sleep(3)  # what start-up still does is not part of serving
    agents = [psutil.Process(launch.agent(rank)) for rank in range(3)]
    before = [sum(agent.cpu_times()[:2]) for agent in agents]
    time.sleep(seconds)  # the span that is measured
    shares = [100 * (sum(agent.cpu_times()[:2]) - start) / seconds for agent, start in zip(agents, before, strict=True)]
    row(f"agent's CPU while serving ({seconds:.0f} s), % of a core, rank 0", f"{shares[0]:.2f}", "0.5")
    row("the same, highest of the other ranks", f"{max(shares[1:]):.2f}", "0.5")
    row("agent's memory while serving, MiB (RSS), highest", f"{max(map(rss, agents)):.1f}", "60")
    launch.kill(launch.process.pid, signal.SIGTERM)
    launch.end()


def rss(process: psutil.Process) -> float:
    """Resident memory in MiB."""
    return float(process.memory_info().rss) / 2**20


def flood(seconds: float) -> None:
    """A server that writes 100 MB/s to its log."""
    launch = launched(Launch(words={"decode-0": ["--flood", 100]}))
    launch.serving()
    agent = psutil.Process(launch.agent(1))
    log = launch.run_dir / "logs" / "decode-0.log"
    memory, size, cpu, start = rss(agent), log.stat().st_size, sum(agent.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)  # the span that is measured
    passed = time.monotonic() - start
    row("log flood: MB/s written", f"{(log.stat().st_size - size) / passed / 1e6:.0f}", "100")
    row("log flood: agent's memory grew by MiB", f"{rss(agent) - memory:.1f}", "0")
    row("log flood: agent's CPU, % of a core", f"{100 * (sum(agent.cpu_times()[:2]) - cpu) / passed:.1f}")
    launch.kill(launch.process.pid, signal.SIGTERM)
    launch.end()
    row("log flood: bytes shown on the console a second", f"{launch.err.stat().st_size / passed:,.0f}")
    log.unlink()


def many(ranks: int) -> None:
    """Many ranks on this machine."""
    start = time.monotonic()
    launch = launched(Launch(decodes=ranks - 1))
    launch.serving()
    row(f"{ranks} ranks: seconds to serving", f"{time.monotonic() - start:.1f}")
    agents = [psutil.Process(launch.agent(rank)) for rank in range(ranks)]
    guardians = [psutil.Process(launch.guardian(rank)) for rank in range(ranks)]
    pss = sum(process.memory_full_info().pss for process in (*agents, *guardians)) / 2**20
    row(f"{ranks} ranks: memory of all agents and guardians, MiB (PSS)", f"{pss:.0f}")
    stop = launch.kill(launch.process.pid, signal.SIGTERM)
    launch.end(60)
    row(f"{ranks} ranks: seconds from SIGTERM to nothing left", f"{time.monotonic() - stop:.1f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=32, help="ranks of the large launch")
    parser.add_argument("--repeat", type=int, default=5, help="launches of which the median is taken")
    asked = parser.parse_args()
    row("", "measured", "aim")
    gate(asked.repeat)
    death(asked.repeat, 8)
    serving(20)
    flood(5)
    many(asked.ranks)


if __name__ == "__main__":
    main()
