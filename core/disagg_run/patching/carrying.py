"""The last part of a change, from the first rename on, which must not stop halfway.

It is done by a process of its own that waits until all is written: a kill of ours leaves it to that process, a kill of
that process leaves it to us, and the renames take milliseconds. Only where both are killed at once, as by a power cut,
does the change stay for whoever comes next to finish.

    python -m disagg_run.patching.carrying IN OUT ROOT...     # then "go" on file descriptor IN; it answers on OUT
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from disagg_run.errors import PatchError
from disagg_run.patching.replacing import discard, go

#: What is started; import roots follow.
COMMAND = (sys.executable, "-m", "disagg_run.patching.carrying")
_READY, _GO, _DONE = b"ready\n", b"go\n", b"done\n"


def carry(roots: Sequence[Path], locks: Sequence[int]) -> None:
    """Replace what is staged in ``roots``, to the end whichever single process is killed meanwhile.

    ``locks``: file descriptors that hold the locks of the roots; whoever does the last rename holds them until then.
    Raises PatchError as ``replacing.go``.
    """
    try:
        with _carrier(roots, locks) as (word, answers):
            if answers.readline() == _READY:
                with contextlib.suppress(BrokenPipeError):
                    os.write(word, _GO)
                said = answers.readline()
                if said == _DONE:
                    return
                if said.endswith(b"\n"):
                    message, remedy = json.loads(said)
                    raise PatchError(message, remedy=remedy)
    except OSError:
        pass  # no process or no file descriptor to be had: then it is done without a second one
    # It could not be started, or was killed, and has ended.
    go(roots)


@contextlib.contextmanager
def _carrier(roots: Sequence[Path], locks: Sequence[int]) -> Iterator[tuple[int, BinaryIO]]:
    """Where to write the word, and what it answers: pipes of their own, since start-up code may print anything."""
    with contextlib.ExitStack() as stack:
        theirs_in, word = os.pipe()
        stack.callback(os.close, word)
        answers, theirs_out = os.pipe()
        reading = stack.enter_context(os.fdopen(answers, "rb"))
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
            yield word, reading
        finally:
            stack.close()
            carrier.wait()


def main() -> None:
    """Wait for the word, then replace what is staged in the roots of the command line; without it, remove that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    word, answers = map(int, sys.argv[1:3])
    roots = [Path(each) for each in sys.argv[3:]]
    _say(answers, _READY)
    if os.read(word, 64) != _GO:
        discard(roots)
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
