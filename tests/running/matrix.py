"""Faults of every kind, in every process, in every phase: how each is made, and what must be seen.

A launch of two ranks (a store, prefill-0 and the router on rank 0, decode-0 on rank 1) of real small servers gets one
fault; then every rank must end non-zero in the stated time, name the culprit, and leave no process and no port.
"""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from tests.running.launched import Launched, alive, until
from tests.running.plans import HTTP, ROUTER, Launch, edges, server

TARGETS = ("prefill", "decode", "router", "service", "agent of rank 0", "agent of rank 1")
PHASES = ("starting", "gated", "serving", "tearing down")
FAULTS = ("exit 0", "exit 1", "SIGKILL", "SIGSTOP", "port taken", "never ready", "wedged")

NAMES = {"prefill": "prefill-0", "decode": "decode-0", "router": "router", "service": "store"}
RANKS = {"prefill-0": 0, "decode-0": 1, "router": 0, "store": 0}
STORE = 18030

#: Seconds from an exit to the end of every rank, and those that a hang may take until it is seen: a process or agent
#: that is stopped (Timing.stall_s with its looks), and one that answers nothing (Timing.hang_s as set below).
EXIT_S, STALL_S, HANG_S = 2.0, 4.5, 4.0
#: Seconds from a launcher's start to its agents' checks.
START_S = 3.0
#: The machine that runs this also runs other tests; a measured time may be longer by this factor.
SLACK = 2.0


@attrs.frozen
class Cell:
    """One fault in one process in one phase."""

    target: str
    phase: str
    fault: str

    def __str__(self) -> str:
        return f"{self.target}, {self.phase}, {self.fault}"


def impossible(cell: Cell) -> str:
    """Why a cell cannot be; "" where it can."""
    agent = cell.target.startswith("agent")
    if cell.fault in ("port taken", "never ready") and (cell.phase != "starting" or agent):
        return "only a process that starts takes a port or becomes ready"
    if cell.fault == "wedged" and (agent or cell.phase not in ("gated", "serving")):
        return "only a server that was ready can stop answering"
    if cell.target == "router" and cell.phase == "gated":
        return "while others are waited for, the router is not started"
    if agent and cell.fault.startswith("exit"):
        return "an agent does not exit by itself before the run ends"
    return ""


def cells() -> list[Cell]:
    """All that can be."""
    every = (Cell(*each) for each in itertools.product(TARGETS, PHASES, FAULTS))
    return [cell for cell in every if not impossible(cell)]


def pairwise(chosen: Iterable[Cell]) -> list[Cell]:
    """A subset in which every pair of target, phase and fault that ``chosen`` has still occurs; always the same one."""
    open_cells = list(chosen)
    wanted = {pair for cell in open_cells for pair in _pairs(cell)}
    picked: list[Cell] = []
    while wanted:
        best = max(open_cells, key=lambda cell: len(wanted & _pairs(cell)))
        picked.append(best)
        wanted -= _pairs(best)
    return picked


def _pairs(cell: Cell) -> set[tuple[str, str]]:
    return set(itertools.combinations((cell.target, cell.phase, cell.fault), 2))


@attrs.frozen(kw_only=True)
class Seen:
    """What came of a cell."""

    cell: Cell
    #: Seconds from the fault to the end of the launcher.
    seconds: float
    #: The most that it may take.
    allowed_s: float
    exit_code: int
    #: What is not as it must be; () = all is.
    problems: tuple[str, ...]


def allowed_s(cell: Cell) -> float:
    """The most seconds from a fault to the end of the run; from the launcher's start where it was there before."""
    if cell.fault == "port taken":
        return START_S + EXIT_S
    if cell.fault == "wedged":
        return HANG_S + EXIT_S
    if cell.phase == "tearing down":
        return 2 * STALL_S + 2 * EXIT_S
    return (STALL_S if cell.fault == "SIGSTOP" else 0.0) + EXIT_S


def run_cell(cell: Cell, directory: Path) -> Seen:
    """Make the fault and look."""
    asked = _launch(cell)
    foreign = _foreign(cell, asked)
    launched = Launched(asked.plan(), directory, **_settings(cell))
    try:
        start = _strike(cell, launched)
        code = launched.process.wait(60)
        seconds = time.monotonic() - start
        return _judged(cell, launched, code, seconds, foreign)
    finally:
        launched.stop()
        if foreign is not None:
            foreign.kill()
            foreign.wait()


def _settings(cell: Cell) -> dict[str, float]:
    settings: dict[str, float] = {"hang_s": 2.0}
    if cell.phase == "tearing down":
        settings |= {"smoke": 1, "grace_s": 2.0}
    return settings


def _launch(cell: Cell) -> Launch:
    """The launch, with what must be slow for the phase to last."""
    asked = Launch()
    name = NAMES.get(cell.target)
    words: dict[str, list[object]] = {each: [] for each in RANKS}
    timeout = dict.fromkeys(RANKS, 30.0)
    if cell.fault == "never ready" and name:
        words[name].append("--unready")
        timeout[name] = 1.0
    elif cell.phase == "starting" and cell.fault != "port taken":
        words[name or "decode-0"] += ["--delay", 60]
    elif cell.phase == "gated":
        words["prefill-0" if name != "prefill-0" else "decode-0"] += ["--delay", 60]
    elif cell.phase == "tearing down":
        words[name or "decode-0"].append("--ignore-term")
    first = asked.addresses[0]
    asked.more = {0: [server("store", first, *words["store"], port=STORE, kind="service", timeout_s=timeout["store"])]}
    after_store = {"after": edges("store")}
    # A gated service has been started and waited for by then; for the other cells nothing waits for it.
    asked.fields = {"prefill-0": dict(after_store), "decode-0": dict(after_store), "router": {}}
    for each in ("prefill-0", "decode-0", "router"):
        asked.words[each] = words[each]
        asked.fields[each]["timeout_s"] = timeout[each]
    return asked


def _foreign(cell: Cell, asked: Launch) -> subprocess.Popen[bytes] | None:
    """A process of somebody else that holds the target's port."""
    if cell.fault != "port taken":
        return None
    name = NAMES[cell.target]
    port = {"router": ROUTER, "store": STORE}.get(name, HTTP)
    address = asked.addresses[RANKS[name]]
    code = f"import socket, signal; s = socket.create_server(({address!r}, {port})); signal.pause()"
    foreign = subprocess.Popen([sys.executable, "-S", "-c", code])

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((address, port)) == 0

    until(listens, "the foreign listener")
    return foreign


def _strike(cell: Cell, launched: Launched) -> float:
    """Wait for the phase, make the fault, and return when that was."""
    name = NAMES.get(cell.target)
    if cell.fault == "port taken":
        return time.monotonic()
    if cell.fault == "never ready":
        launched.pid(str(name))
        return time.monotonic() + 1.0
    _await_phase(cell, launched)
    pid = launched.pid(name) if name else launched.agent(int(cell.target[-1]))
    signums = {"exit 0": signal.SIGUSR1, "exit 1": signal.SIGUSR2, "wedged": signal.SIGHUP}
    return launched.kill(pid, signums.get(cell.fault) or getattr(signal, cell.fault))


def _await_phase(cell: Cell, launched: Launched) -> None:
    name = NAMES.get(cell.target)
    if cell.phase == "starting":
        waited = name or "decode-0"
        launched.pid(waited)
        log = launched.run_dir / "logs" / f"{waited}.log"
        until(lambda: log.exists() and log.stat().st_size, f"{waited}'s first line")
    elif cell.phase == "gated":
        waited = name or "decode-0"
        launched.event(RANKS[waited], "process.ready", process=waited)
        slow = "prefill-0" if waited != "prefill-0" else "decode-0"
        launched.pid(slow)
    elif cell.phase == "serving":
        launched.serving()
    else:
        # The stubborn process has had its TERM, and its grace of two seconds runs.
        target = name or "decode-0"
        first = {"store": "prefill-0", "prefill-0": "router", "router": "", "decode-0": "router"}[target]
        if first:
            launched.event(RANKS[first], "process.exited", process=first)
        else:
            until(lambda: (launched.run_dir / "smoke.json").exists(), "the end of the smoke test")


def _judged(cell: Cell, launched: Launched, code: int, seconds: float, foreign: subprocess.Popen[bytes] | None) -> Seen:
    problems: list[str] = []
    name = NAMES.get(cell.target)
    ending_server = cell.phase == "tearing down" and name is not None
    try:
        launched.check_nothing_left()
    except AssertionError as error:
        if foreign is None:
            problems.append(str(error))
    if foreign is not None and not alive(foreign.pid):
        problems.append("the foreign process was ended")
    if ending_server:
        # The run was good, and a process that is being ended may end in any way; where it hangs, KILL ends it.
        problems += _expect(code == 0, f"the launcher ended with {code}")
        return Seen(cell=cell, seconds=seconds, allowed_s=allowed_s(cell), exit_code=code, problems=tuple(problems))
    problems += _expect(code in (10, 11, 12, 13), f"the launcher ended with {code}")
    problems += _culprit_problems(cell, launched)
    problems += _expect(
        seconds <= allowed_s(cell) * SLACK, f"it took {seconds:.1f} s, {allowed_s(cell):.1f} s are allowed"
    )
    return Seen(cell=cell, seconds=seconds, allowed_s=allowed_s(cell), exit_code=code, problems=tuple(problems))


def _culprit_problems(cell: Cell, launched: Launched) -> list[str]:
    problems: list[str] = []
    name = NAMES.get(cell.target)
    rank = RANKS[name] if name else int(cell.target[-1])
    for each in (0, 1):
        if not (launched.run_dir / f"result.rank{each}.json").exists():
            problems.append(f"rank {each} wrote no result")
            continue
        result = launched.result(each)
        culprit = result["culprit"] or {}
        problems += _expect(result["exit_code"] != 0, f"rank {each} ended with 0")
        problems += _expect(culprit.get("rank") == rank, f"rank {each} blames rank {culprit.get('rank')}")
        blamed = ("run", name) if cell.fault == "port taken" else (name or "agent",)
        problems += _expect(culprit.get("process") in blamed, f"rank {each} blames {culprit.get('process')}")
    text = launched.err.read_text()
    problems += _expect("Traceback" not in text, "a traceback was shown")
    for word in _words(cell, name, rank):
        problems += _expect(word in text, f"{word!r} is not shown")
    return problems


def _words(cell: Cell, name: str | None, rank: int) -> Sequence[str]:
    """What the user must have been told."""
    if cell.fault == "port taken":
        return (f"of {name}) is held on", "pid ")
    how = {"exit 0": "exited with code 0", "exit 1": "exited with code 1", "SIGKILL": "SIGKILL"}
    told = [how[cell.fault]] if cell.fault in how else []
    if name is None:
        return [*told, f"agent of rank {rank}"]
    return [*told, name, f"last lines of {name}, rank {rank}:", f"logs/{name}.log"]


def _expect(condition: bool, problem: str) -> list[str]:
    return [] if condition else [problem]
