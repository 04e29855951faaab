"""What could keep a command waiting for ever: a process that does not answer, a pipe or a device in a file's place."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_run.errors import PatchError
from disagg_run.patching import apply_patches, carrying, check_patches, find_site, ledgers, locating, revert_patches
from disagg_run.patching.manifest import BACKUP_SUFFIX, LOCK, MANIFEST
from tests.patching.toy import ALL, SERVER, WAIT, by_state, digests, install, sources


@pytest.fixture
def alarm() -> Iterator[None]:
    """Ends what waits for ever."""

    def hangs(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], None]] = {
    "a named pipe": fifo,
    "a socket": bound_socket,
    "a directory": Path.mkdir,
    "a device": device,
}


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["toy/server.py", MANIFEST])
def test_what_is_no_file_in_place_of_one_is_one_clear_line(root: Path, file: str, kind: str) -> None:
    (root / file).unlink(missing_ok=True)
    KINDS[kind](root / file)
    for work in (check_patches, apply_patches):
        with pytest.raises(PatchError, match=rf"{root / file} is {kind}, not a file"):
            work(ALL, target=root)
    assert not (root / LOCK).exists()


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["", BACKUP_SUFFIX])
def test_what_is_no_file_in_place_of_a_patched_one_or_its_backup_is_one_clear_line(
    root: Path, kind: str, suffix: str
) -> None:
    apply_patches([WAIT], target=root)
    path = root / f"toy/server.py{suffix}"
    path.unlink()
    KINDS[kind](path)
    with pytest.raises(PatchError, match=rf"{path} is ({kind}, not a file|a link to /dev/zero)"):
        revert_patches([root])
    if not suffix:
        assert ledgers([root])[0].problem == f"{path} is {kind}, not a file"


@pytest.mark.usefixtures("alarm")
def test_an_interpreter_that_does_not_answer_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locating, "ASK_TIMEOUT_S", 0.5)
    python = tmp_path / "python3"
    # The child, not the shell, holds the output open.
    python.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\nwait\n")
    python.chmod(0o755)
    with pytest.raises(PatchError, match=r"the interpreter '.*' gave no answer in 0\.5 s: see what it does") as refusal:
        find_site([WAIT], python=str(python))
    assert "--python" in refusal.value.remedy
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)  # polled with a deadline: it is init that reaps it


@pytest.mark.usefixtures("alarm")
def test_a_second_process_that_is_stopped_as_it_starts_is_ended_and_the_change_made_without_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "START_S", 0.5)
    pid = tmp_path / "pid"
    code = f"import os, signal; open({str(pid)!r}, 'w').write(str(os.getpid())); os.kill(os.getpid(), signal.SIGSTOP)"
    monkeypatch.setattr(carrying, "COMMAND", (sys.executable, "-c", code))
    old = sources(root)
    assert set(by_state(apply_patches(ALL, target=root)).values()) == {"applied"}
    assert sources(root) != old
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not [name for name in digests(root) if name.endswith((".disagg-run-new", ".disagg-run-old", ".lock"))]


@pytest.mark.parametrize("executable", [None, ""])
def test_an_embedded_python_that_does_not_know_its_program_patches_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    root = install(tmp_path / "site")
    monkeypatch.setattr(carrying, "COMMAND", (executable, *carrying.COMMAND[1:]))
    monkeypatch.setattr(sys, "executable", executable)
    assert set(by_state(apply_patches(ALL, target=root)).values()) == {"applied"}
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == SERVER
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PatchError, match=r"there is no python3 in PATH to ask where packages lie: name one with"):
        apply_patches(ALL)
