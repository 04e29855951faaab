"""Runs every run file of ``examples/`` simulated, to serving and through some requests, and prints a table.

    python -m tests.nightly                # all, one after the other; 1 where one fails
    python -m tests.nightly NAME…          # these alone

What CI runs of it is in ``tests/real/test_simulated_examples.py``. Nothing else may use 127.0.0.x meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import attrs
import yaml

from tests.running.launched import processes_of

EXAMPLES = Path(__file__).parents[1] / "examples"

#: Seconds that a run may take in all.
TIMEOUT_S = 180.0

#: Gives the addresses in its first word, which a comma parts, to the loopback device of a network of its own, and
#: becomes the rest of its words. The requests are those of ``ip link set lo up`` and ``ip address add ADDRESS dev lo``.
_WITH_ADDRESSES = """
import fcntl, os, socket, struct, sys
addresses, words = sys.argv[1].split(","), sys.argv[2:]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
    fcntl.ioctl(four, 0x8914, struct.pack("16sh14x", b"lo", 0x49))
    for address in addresses:
        packed = socket.inet_pton(socket.AF_INET6, address)
        fcntl.ioctl(six, 0x8916, struct.pack("16sIi", packed, 128, socket.if_nametoindex("lo")))
os.execvp(words[0], words)
"""

_GOOD = re.compile(r"^(\d+) of (\d+) requests good", re.MULTILINE)


@attrs.frozen(kw_only=True)
class Outcome:
    """How the simulated run of a run file went."""

    name: str
    #: None = it was killed when its time was over.
    exit_code: int | None
    #: 0 = it was not planned.
    ranks: int
    #: None = it did not come to serving.
    serving_s: float | None
    requests: int
    good: int
    #: Processes that outlived the run, and what its teardown found left, rank by rank.
    left: tuple[str, ...]
    #: All that it printed.
    text: str = attrs.field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether it served, every request was good, and it ended as it should with nothing left."""
        return self.exit_code == 0 and self.serving_s is not None and self.good == self.requests and not self.left


def names() -> list[str]:
    """The names of all run files."""
    return sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def simulate(name: str, run_dir: Path, *, requests: int = 8, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run a run file simulated, in the new directory ``run_dir``; ``timeout_s``: seconds for all of it."""
    recipe = EXAMPLES / f"{name}.yaml"
    words = [sys.executable, "-m", "disagg_run", "--recipe", str(recipe), "--simulate", "--smoke", str(requests)]
    words = [*_network(recipe), *words, "--run-dir", str(run_dir)]
    started = time.time()
    code: int | None
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            text, _ = process.communicate(timeout=timeout_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code, text = None, _ended(process)
    left = [f"process {each}" for each in processes_of(run_dir)]
    plan = run_dir / "plan.json"
    ranks = len(json.loads(plan.read_text())["ranks"]) if plan.exists() else 0
    serving = None
    for rank in range(ranks):
        for event in _events(run_dir, rank):
            if event["event"] == "run.serving":
                serving = datetime.fromisoformat(str(event["timestamp"]).replace("Z", "+00:00")).timestamp() - started
            if event["event"] == "teardown.done":
                left += [f"rank {rank}: {each}" for each in event["left"]]
    found = _GOOD.search(text)
    return Outcome(
        name=name,
        exit_code=code,
        ranks=ranks,
        serving_s=serving,
        requests=requests,
        good=int(found[1]) if found and int(found[2]) == requests else 0,
        left=tuple(left),
        text=text,
    )


def _ended(process: subprocess.Popen[str]) -> str:
    """What a run printed that is told to end, or killed where it does not."""
    process.terminate()
    try:
        return process.communicate(timeout=30)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _events(run_dir: Path, rank: int) -> list[dict[str, object]]:
    path = run_dir / f"events.rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _network(recipe: Path) -> list[str]:
    """Words that give a run its own network, where the run file names nodes whose addresses are not this machine's."""
    nodes = yaml.safe_load(recipe.read_text(encoding="utf-8")).get("nodes", ())
    addresses = [address for node in nodes if ":" in (address := str(node).rpartition("=")[2])]
    if not addresses:
        return []
    alone = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    return [*alone, sys.executable, "-c", _WITH_ADDRESSES, ",".join(addresses)]


def main(words: Sequence[str] | None = None) -> int:
    """Run them and print the table; 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description="Simulates the run files.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a run file of examples/ (default: all)")
    parser.add_argument("--requests", type=int, default=8, metavar="N", help="requests to each (default 8)")
    asked = parser.parse_args(words)
    chosen = asked.names or names()
    width = max(map(len, chosen))
    failed = []
    print(f"{'run file':{width}}  ranks  serving    good  exit  seconds", flush=True)
    with tempfile.TemporaryDirectory(prefix="disagg-run-nightly-") as directory:
        for name in chosen:
            begun = time.monotonic()
            found = simulate(name, Path(directory) / name, requests=asked.requests)
            serving = "never" if found.serving_s is None else f"{found.serving_s:.1f} s"
            code = "late" if found.exit_code is None else found.exit_code
            row = f"{name:{width}}  {found.ranks:5}  {serving:>7}  {found.good:>2} of {found.requests}  {code:>4}"
            print(f"{row}  {time.monotonic() - begun:7.1f}", *(() if found.passed else ("FAILED",)), flush=True)
            if not found.passed:
                failed.append(found)
    for each in failed:
        print(f"\n--- {each.name}: {'; '.join(each.left)}", *each.text.splitlines()[-25:], sep="\n")
    print(f"\n{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
