"""A launch under test: a real launcher process, what its run directory says, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from disagg_run.planning.document import LaunchPlan

DRIVE = Path(__file__).with_name("drive.py")

#: What the fixture ``agent`` gives: starts ``disagg-run agent`` for a plan and a rank, with further words.
Agent = Callable[..., "subprocess.Popen[str]"]


def until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """The first true value of ``condition``, looked at again and again; fails after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_of(run_dir: Path, *, but: int = 0) -> list[str]:
    """The living processes that were told of a run directory by argument or variable, without the pid ``but``."""
    found = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), *process.environ().values()]
            if process.pid not in (but, os.getpid()) and any(str(run_dir) in word for word in told):
                found += [f"{process.pid} {' '.join(process.cmdline())}"] if alive(process.pid) else []
        except psutil.Error:
            continue
    return found


def star(asked: LaunchPlan) -> tuple[str, str]:
    """Where rank 0 listens: a fixed port on an address of this test's own."""
    return "--star", f"{asked.ranks[0].node.address}:21770"


class Launched:
    """A running launch."""

    def __init__(self, plan: LaunchPlan, directory: Path, **settings: float) -> None:
        self.plan = plan
        self.run_dir = directory / "run"
        directory.mkdir(parents=True, exist_ok=True)
        plan_file = directory / "plan.json"
        plan_file.write_text(plan.to_json())
        words = [sys.executable, str(DRIVE), str(plan_file), str(self.run_dir)]
        words += [f"{name}={value}" for name, value in settings.items()]
        self.out, self.err = directory / "out", directory / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(words, stdout=out, stderr=err, stdin=subprocess.DEVNULL)

    # --- what it says --------------------------------------------------------------------------------------------

    def events(self, rank: int) -> list[dict[str, Any]]:
        path = self.run_dir / f"events.rank{rank}.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]

    def event(self, rank: int, name: str, **fields: Any) -> dict[str, Any]:
        """The first event of that name with these fields; waits for it."""

        def found() -> dict[str, Any] | None:
            for event in self.events(rank):
                if event["event"] == name and all(event.get(key) == value for key, value in fields.items()):
                    return event
            assert self.process.poll() is None, f"the launch ended without {name} {fields}: {self.text()}"
            return None

        result: dict[str, Any] = until(found, f"{name} {fields} of rank {rank}")
        return result

    def serving(self) -> dict[str, Any]:
        return self.event(0, "run.serving")

    def pid(self, process: str) -> int:
        for rank in self.plan.ranks:
            if process in [each.name for each in rank.processes()]:
                return int(self.event(rank.rank, "process.started", process=process)["pid"])
        raise AssertionError(f"no process {process}")

    def agent(self, rank: int) -> int:
        return int(self.event(rank, "agent.started")["pid"])

    def guardian(self, rank: int) -> int:
        return int(self.event(rank, "agent.started")["guardian"])

    def result(self, rank: int) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.run_dir / f"result.rank{rank}.json").read_text())
        return data

    def culprit(self, rank: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.result(rank)["culprit"]
        return found

    def text(self) -> str:
        """All that the user saw."""
        return self.out.read_text() + self.err.read_text()

    # --- how it ends ---------------------------------------------------------------------------------------------

    def kill(self, pid: int, signum: int = signal.SIGKILL) -> float:
        """Signal a process of this launch and return the monotonic time."""
        os.kill(pid, signum)
        return time.monotonic()

    def end(self, timeout_s: float = 30.0) -> int:
        """Its exit code once it has ended; that nothing is left is checked on the way."""
        code = self.process.wait(timeout_s)
        self.check_nothing_left()
        return code

    def check_nothing_left(self, within_s: float = 0.0) -> None:
        deadline = time.monotonic() + within_s
        while (left := self.processes() + self.ports()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left, f"left behind: {left}"

    def processes(self) -> list[str]:
        """The living processes that were told of this launch."""
        return processes_of(self.run_dir, but=self.process.pid)

    def ports(self) -> list[str]:
        """What listens on the launch's addresses; on 127.0.0.1, which others use too, on the plan's ports."""
        own = {rank.node.address for rank in self.plan.ranks}
        planned = {
            port + index
            for rank in self.plan.ranks
            for process in rank.processes()
            for name, port in process.ports.items()
            for index in range(process.port_counts.get(name, 1))
        }
        return [
            str(each.laddr)
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
            and each.laddr
            and each.laddr.ip in own
            and (each.laddr.ip != "127.0.0.1" or each.laddr.port in planned)
        ]

    def stop(self) -> None:
        """End it after a test that did not."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
