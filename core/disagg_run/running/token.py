"""The secret of a run's connections: from a 0600 file or the environment, never on a command line."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from disagg_run.errors import UsageError
from disagg_run.running.environment import TOKEN

_SHORTEST = 16


def new_token() -> str:
    """A secret for one run."""
    return secrets.token_hex(32)


def read_token(path: Path | None, *, needed: bool) -> str:
    """The run's secret: from ``path``, else from DISAGG_RUN_TOKEN; "" where none is given and none is needed.

    Raises UsageError for a file that others may read, that is too short, or that is not there.
    """
    if path is not None:
        return _from_file(path)
    token = os.environ.get(TOKEN, "")
    if needed and not token:
        raise UsageError(
            "the agents of a run need a secret in common",
            remedy=f"give each the same --token-file (mode 0600), or {TOKEN} in its environment",
        )
    return token


def _from_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file {str(path)!r} cannot be read: {error}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(
            f"the token file {str(path)!r} has mode {stat.S_IMODE(mode):04o}, so that others can use it",
            remedy=f"chmod 600 {path}",
        )
    if len(token) < _SHORTEST:
        raise UsageError(
            f"the token in {str(path)!r} has {len(token)} characters",
            remedy=f"at least {_SHORTEST}, for example from 'openssl rand -hex 32'",
        )
    return token
