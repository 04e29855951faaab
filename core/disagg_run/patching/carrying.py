"""The last part of a change, from the first rename on, which must not stop halfway.

It is done by a process of its own that waits until all is written: a kill of ours leaves it to that process, a kill of
that process leaves it to us, and the renames take milliseconds. Only where both are killed at once, as by a power cut,
does the change stay for whoever comes next to finish.

    python -m disagg_run.patching.carrying ROOT...     # then "go" on its standard input
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
    with _carrier(roots, locks) as carrier:
        assert carrier.stdin is not None
        assert carrier.stdout is not None
        if carrier.stdout.readline() == _READY:
            with contextlib.suppress(BrokenPipeError):
                os.write(carrier.stdin.fileno(), _GO)
            said = carrier.stdout.readline()
            if said == _DONE:
                return
            if said.endswith(b"\n"):
                message, remedy = json.loads(said)
                raise PatchError(message, remedy=remedy)
    # It could not be started, or was killed, and has ended.
    go(roots)


@contextlib.contextmanager
def _carrier(roots: Sequence[Path], locks: Sequence[int]) -> Iterator[subprocess.Popen[bytes]]:
    # In a session of its own: what ends our whole process group, as Ctrl-C does, does not end it.
    carrier = subprocess.Popen(
        [*COMMAND, *map(str, roots)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(locks),
        start_new_session=True,
    )
    try:
        yield carrier
    finally:
        for pipe in (carrier.stdin, carrier.stdout):
            assert pipe is not None
            pipe.close()
        carrier.wait()


def main() -> None:
    """Wait for the word, then replace what is staged in the roots of the command line; without it, remove that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    roots = [Path(word) for word in sys.argv[1:]]
    _say(_READY)
    if sys.stdin.buffer.readline() != _GO:
        discard(roots)
        return
    try:
        go(roots)
    except PatchError as error:
        _say(json.dumps([error.message, error.remedy]).encode() + b"\n")
    else:
        _say(_DONE)


def _say(line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever started us was killed, which is why we are here
        os.write(sys.stdout.fileno(), line)


if __name__ == "__main__":
    main()
