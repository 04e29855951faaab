"""The last part of a change, from the first rename on, which must not stop halfway.

It is done by a process of its own that waits until all is written: a kill of ours leaves it to that process, a kill of
that process leaves it to us, and the renames take milliseconds. One that does not go on, since it was stopped, is
killed after a time, which leaves it to us too. Only where both are killed at once, as by a power cut, does the change
stay for whoever comes next to finish.

    python -m disagg_run.patching.carrying IN OUT ROOT...     # then "go" on file descriptor IN; it answers on OUT
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from disagg_run.errors import PatchError
from disagg_run.patching.locking import StillHeld
from disagg_run.patching.replacing import go
from disagg_run.patching.taking_back import discard

#: What is started; import roots follow.
COMMAND = (sys.executable, "-m", "disagg_run.patching.carrying")
#: Seconds that it has to start, to make the change, and to end. Starting reads a Python from a slow shared file system;
#: all of them together are less than others wait for our lock (``locking.LOCK_TIMEOUT_S``).
START_S, CHANGE_S, END_S = 30.0, 60.0, 10.0
_READY, _GO, _DONE = b"ready\n", b"go\n", b"done\n"


def carry(roots: Sequence[Path], locks: Sequence[int]) -> None:
    """Replace what is staged in ``roots``, to the end whichever single process is killed or stopped meanwhile.

    ``locks``: file descriptors that hold the locks of the roots; whoever does the last rename holds them until then.
    Raises PatchError as ``replacing.go``, and where a second process neither goes on nor can be ended.
    """
    if not COMMAND[0]:
        go(roots)  # an embedded Python does not know its program: then it is done without a second process
        return
    try:
        with _carrier(roots, locks) as (carrier, word, answers):
            if _line(answers, START_S) == _READY:
                with contextlib.suppress(BrokenPipeError):
                    os.write(word, _GO)
                said = _line(answers, CHANGE_S)
                if said == _DONE:
                    return
                if said.endswith(b"\n"):
                    message, remedy = json.loads(said)
                    raise PatchError(message, remedy=remedy)
            carrier.kill()  # killed already, or stopped
    except OSError:
        pass  # no process or no file descriptor to be had: then it is done without a second one
    # It could not be started, or has ended before it came to the end.
    go(roots)


@contextlib.contextmanager
def _carrier(roots: Sequence[Path], locks: Sequence[int]) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """The process, where to write the word, and where it answers; it has ended afterwards.

    The pipes are its own, since start-up code may print anything.
    """
    with contextlib.ExitStack() as stack:
        theirs_in, word = os.pipe()
        stack.callback(os.close, word)
        answers, theirs_out = os.pipe()
        stack.callback(os.close, answers)
        try:
            # In a session of its own: what ends our whole process group, as Ctrl-C does, does not end it.
            carrier = subprocess.Popen(
                [*COMMAND, str(theirs_in), str(theirs_out), *map(os.path.abspath, roots)],
                # Not where we stand: modules that lie there would be taken for ours.
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs_in, theirs_out, *locks),
                start_new_session=True,
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        try:
            yield carrier, word, answers
        finally:
            stack.close()
            _wait(carrier, roots[0])


def _line(answers: int, timeout_s: float) -> bytes:
    """What it says next; less than a line where it says no more, or not in that time."""
    deadline = time.monotonic() + timeout_s
    waiting = select.poll()  # not select, which knows no file descriptor beyond 1023
    waiting.register(answers, select.POLLIN)
    said = b""
    while not said.endswith(b"\n"):
        ready = waiting.poll(max(deadline - time.monotonic(), 0) * 1000)
        part = os.read(answers, 4096) if ready else b""
        if not part:
            break
        said += part
    return said


def _wait(carrier: subprocess.Popen[bytes], root: Path) -> None:
    """Wait for its end, which is near; one that does not come to it is killed."""
    for _ in range(2):
        try:
            carrier.wait(END_S)
            return
        except subprocess.TimeoutExpired:
            carrier.kill()
    raise StillHeld(
        f"process {carrier.pid}, which changes {root}, can neither go on nor be ended",
        remedy="it waits for that file system: when that is back, run again",
    )


def main() -> None:
    """Wait for the word, then replace what is staged in the roots of the command line; without it, remove that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    word, answers = map(int, sys.argv[1:3])
    roots = [Path(each) for each in sys.argv[3:]]
    _say(answers, _READY)
    if os.read(word, 64) != _GO:
        for root in roots:
            discard(root)
        return
    try:
        go(roots)
    except PatchError as error:
        _say(answers, json.dumps([error.message, error.remedy]).encode() + b"\n")
    else:
        _say(answers, _DONE)


def _say(answers: int, line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever started us was killed, which is why we are here
        os.write(answers, line)


if __name__ == "__main__":
    main()
