"""A run directory that fills up, vanishes or cannot be written: what runs goes on, or one sentence says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_run.errors import RunError
from disagg_run.logs import event_log
from disagg_run.running.output import until_printed
from disagg_run.running.room import Room, writing
from disagg_run.running.rundir import RunDir
from disagg_run.running.tails import Tails
from tests.running.launched import DRIVE, Agent, Launched, processes_of, star, until
from tests.running.plans import ROUTER, Launch
from tests.running.test_output import proof, running

Starter = Callable[..., Launched]


# --- what is told, and when --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "no space left on device: free some space there, or name another place with --run-dir"),
        (errno.EDQUOT, "disk quota exceeded: free some space there, or name another place with --run-dir"),
        (errno.ENOENT, "no such file or directory: leave the run directory where it is until the run has ended"),
        (errno.EROFS, "read-only file system: make it writable, or name another place with --run-dir"),
    ],
)
def test_what_cannot_be_written_is_named_with_its_place_and_the_remedy(number: int, told: str) -> None:
    with pytest.raises(RunError) as caught, writing(Path("/r/logs/a.log"), "the log of a"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"the log of a cannot be written to '/r/logs/a.log': {told}"


def test_a_directory_that_is_gone_or_another_one_by_now_is_told_of_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    told: list[tuple[str, dict[str, Any]]] = []
    room = Room(path, lambda event, **data: told.append((event, data)))
    assert room.obstacle() is None
    path.rename(tmp_path / "elsewhere")
    path.mkdir()
    asyncio.run(asyncio.wait_for(room.watch(), 10))
    room.lost(OSError(errno.ENOSPC, "full"))
    assert [event for event, _ in told] == ["run_dir.lost"]
    assert told[0][1]["path"] == str(path)
    assert told[0][1]["reason"] == "no such file or directory"
    path.rmdir()
    obstacle = room.obstacle()
    assert obstacle is not None
    assert obstacle.errno == errno.ENOENT


def test_events_that_cannot_be_written_are_told_of_and_still_shown() -> None:
    shown: list[str] = []
    lost: list[OSError] = []
    log, sink = event_log(Path("/dev/full"), shown.append, pretty=False, lost=lost.append)
    log.info("process.started", process="decode-0")
    sink.close()
    assert [error.errno for error in lost] == [errno.ENOSPC]
    assert json.loads(shown[0])["process"] == "decode-0"


def test_half_a_document_is_not_left_behind(tmp_path: Path) -> None:
    """A limit of file sizes cuts a write short as a full disk does."""
    code = """
import resource, signal, sys
from pathlib import Path
from disagg_run.errors import RunError
from disagg_run.running.outcome import Failure
from disagg_run.running.rundir import RunDir, write_result
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
run_dir = RunDir(path=Path(sys.argv[1]))
try:
    run_dir.claim(b"x" * 1000)
except RunError as error:
    print(error)
try:
    write_result(run_dir, 0, Failure(rank=0, process="run", message="m" * 1000))
except OSError as error:
    print(error.strerror)
"""
    path = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"the plan cannot be written to '{path}/plan.json': file too large: free some space")
    assert second == "File too large"
    assert sorted(each.name for each in path.iterdir()) == ["logs"]
    RunDir(path=path).claim(b"a plan")  # it holds no run


def test_a_log_that_is_gone_is_told_of_where_it_is_followed_or_searched(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    shown: list[str] = []
    tails = Tails(shown.append)
    tails.follow("router", log)
    assert shown == [
        f"[router] (what it prints is not shown any more: {str(log)!r} cannot be read: no such file or directory)"
    ]
    with pytest.raises(RunError, match=r"the log of router, '.*router\.log', cannot be read: no such file"):
        asyncio.run(until_printed(running(log), proof("Add a,")))


# --- launches ----------------------------------------------------------------------------------------------------


def told_once(launched: Launched) -> dict[str, Any]:
    """The one event that tells of the run directory."""
    lines = [line.partition("| ")[2] for line in launched.err.read_text().splitlines() if "run_dir.lost" in line]
    (line,) = lines
    event: dict[str, Any] = json.loads(line)
    return event


@pytest.mark.real
def test_a_run_whose_directory_is_removed_serves_on_and_its_end_is_told_though_it_cannot_be_written(
    launch: Starter,
) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    decode = launched.pid("decode-0")
    shutil.rmtree(launched.run_dir)
    until(lambda: "run_dir.lost" in launched.err.read_text(), "a word of it")
    assert launched.process.poll() is None
    assert told_once(launched)["path"] == str(launched.run_dir)
    launched.kill(decode)
    assert launched.end() == 11
    text = launched.err.read_text()
    assert "disagg-run: error: decode-0 of rank 1 was killed by SIGKILL while it was needed" in text
    assert "Traceback" not in text
    assert "agent.defect" not in text


@pytest.mark.real
def test_a_process_whose_log_has_no_place_any_more_ends_the_run_with_path_and_remedy(launch: Starter) -> None:
    launched = launch(Launch(words={"decode-0": ["--delay", 2]}).plan())  # the router waits for it
    launched.pid("decode-0")
    shutil.rmtree(launched.run_dir)
    assert launched.end() == RunError.exit_code
    text = launched.err.read_text()
    log = launched.run_dir / "logs" / "router.log"
    assert f"the log of router cannot be written to {str(log)!r}: no such file or directory: leave the run" in text
    assert "Traceback" not in text
    assert "agent.defect" not in text


#: Mounts a disk of $1 at $2 that this process and its children alone see, with a file of $3 zeros, and becomes $4….
MOUNT = 'mount -t tmpfs -o size="$1" none "$2" && head -c "$3" /dev/zero > "$2/filler" && shift 3 && exec "$@"'


class OnDisk(Launched):
    """A launch whose run directory is on a small disk of its own."""

    def __init__(self, asked: Launch, directory: Path, *, size: str, taken: str) -> None:
        self.plan = asked.plan()
        self.out, self.err = directory / "out", directory / "err"
        file, self._disk = directory / "plan.json", directory / "disk"
        file.write_text(self.plan.to_json())
        self._disk.mkdir()
        self._own_run_dir = self._disk / "run"
        namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        words = [*namespace, "sh", "-c", MOUNT, "sh", size, str(self._disk), taken]
        words += [sys.executable, str(DRIVE), str(file), str(self._own_run_dir)]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(words, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        # Its files as it sees them.
        self.run_dir = self._seen(self._own_run_dir)

    def _seen(self, path: Path) -> Path:
        return Path(f"/proc/{self.process.pid}/root{path}")

    def fill(self) -> None:
        """Take all that is free."""
        with contextlib.suppress(OSError), self._seen(self._disk / "filler").open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def processes(self) -> list[str]:
        return processes_of(self._own_run_dir, but=self.process.pid)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Callable[..., OnDisk]]:
    """Starts a launch on a disk of its own: ``on_disk(Launch(), size="64k", taken="60k")``."""
    started: list[OnDisk] = []

    def start(asked: Launch, **sizes: str) -> OnDisk:
        started.append(OnDisk(asked, tmp_path, **sizes))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.mark.real
def test_a_server_that_dies_of_a_full_disk_is_told_of_with_the_disk_as_the_reason(
    on_disk: Callable[..., OnDisk],
) -> None:
    launched = on_disk(Launch(), size="32k", taken="28k")  # the plan alone has room
    assert launched.end() == 11
    text = launched.err.read_text()
    said = [line for line in text.splitlines() if "disagg-run: error: " in line]
    assert "exited with code 1 before it was ready, while its log, '" in said[0]
    assert "could not be written: no space left on device: free some space there, or name another" in said[0]
    assert told_once(launched)["reason"] == "no space left on device"
    assert "Traceback" not in text
    assert "agent.defect" not in text


@pytest.mark.real
def test_a_disk_that_fills_up_while_a_run_serves_ends_nothing_and_is_told_of_once(
    on_disk: Callable[..., OnDisk],
) -> None:
    launched = on_disk(Launch(), size="400k", taken="4k")
    launched.serving()
    launched.fill()
    until(lambda: "run_dir.lost" in launched.err.read_text(), "a word of it")
    body = json.dumps({"model": "toy", "prompt": "x", "max_tokens": 2}).encode()
    url = f"http://{launched.plan.ranks[0].node.address}:{ROUTER}/v1/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as answer:
        assert json.load(answer)["choices"]
    launched.kill(launched.process.pid, signal.SIGTERM)
    assert launched.end() == 143
    assert told_once(launched)["remedy"].startswith("free some space there")
    text = launched.err.read_text()
    assert "disagg-run: error: ended by SIGTERM" in text
    assert "Traceback" not in text


@pytest.mark.real
def test_a_rank_that_cannot_make_its_directory_ends_the_others_at_once(agent: Agent, tmp_path: Path) -> None:
    """It fails before it can join; its word reaches rank 0 all the same."""
    asked = Launch().plan()
    first = agent(asked, 0, *star(asked))
    assert first.stderr is not None
    first.stderr.readline()
    (tmp_path / "rank1").write_text("in the way")
    began = time.monotonic()
    second = agent(asked, 1, *star(asked))
    _, err = second.communicate(timeout=30)
    assert second.returncode == RunError.exit_code
    _, told = first.communicate(timeout=30)
    assert first.returncode == RunError.exit_code
    assert time.monotonic() - began < 5
    for text in (err, told):
        assert f"the run directory {str(tmp_path / 'rank1')!r} cannot be made: not a directory: name another" in text
        assert "Traceback" not in text
