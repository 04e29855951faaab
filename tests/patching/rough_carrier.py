"""The process that carries a change to its end, killed at one of its steps, alone or with whoever started it.

python -m tests.patching.rough_carrier STEP alone|both IN OUT ROOT...
"""

from __future__ import annotations

import os
import signal
import sys

from disagg_run.patching import carrying
from tests.patching.killing import die_at

#: In the first root, once it was killed; what was wrapped must not make it.
MARK = "killed"

if __name__ == "__main__":
    step, whom, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    make, starter = os.mkdir, os.getppid()

    def last() -> None:
        make(os.path.join(words[2], MARK))
        if whom == "both":
            os.kill(starter, signal.SIGKILL)

    sys.argv = ["carrying", *words]
    die_at(step, last)
    carrying.main()
