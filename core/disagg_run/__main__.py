"""``python -m disagg_run``: the same as the ``disagg-run`` command."""

from __future__ import annotations

from disagg_run.cli.start import entry

if __name__ == "__main__":
    entry()
