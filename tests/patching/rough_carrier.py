"""The process that carries a change to its end, killed or stopped at one of its steps, or killed with its starter.

    python -m tests.patching.rough_carrier STEP alone|both|stopped BLOCKED IN OUT ROOT...

BLOCKED, if not empty, is a file that is mounted on itself just before the first rename.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from disagg_run.patching import carrying
from tests.patching.killing import block_at_first_rename, die_at

#: In the first root, once it was killed; what was wrapped must not make it.
MARK = "killed"
#: In the first root, once it came to its end, with the number of its steps.
STEPS = "steps-"

if __name__ == "__main__":
    step, whom, blocked, words = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    make, starter = os.mkdir, os.getppid()

    def last() -> None:
        make(os.path.join(words[2], MARK))
        if whom == "both":
            os.kill(starter, signal.SIGKILL)

    sys.argv = ["carrying", *words]
    if blocked:
        block_at_first_rename(Path(blocked))
    done = die_at(step, last, signal.SIGSTOP if whom == "stopped" else signal.SIGKILL)
    carrying.main()
    make(os.path.join(words[2], f"{STEPS}{done()}"))
