"""The console script's first steps, before anything that takes time is imported."""

from __future__ import annotations

import os
import signal
import sys

#: Standard streams that the shell may have closed (``>&-``): file descriptor, name, how ``/dev/null`` stands in.
#: What is written to stdout is asked for, so that it cannot be written must show; remarks may go.
_STREAMS = ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY))


def entry() -> None:
    """The console script."""
    # Ctrl-C while modules are imported ends the command without a traceback. A shell's background job ignores SIGINT
    # from the start, and goes on ignoring it.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    fill_streams()
    from disagg_run.cli.main import main

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())


def fill_streams() -> None:
    """Open ``/dev/null`` where a standard stream is closed: else the next file opened would get what is printed."""
    for number, name, flags in _STREAMS:
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            os.set_inheritable(opened, True)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))
