"""The secret of a run's connections: from a 0600 file or the environment, never on a command line."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from disagg_run.errors import UsageError
from disagg_run.input_files import os_reason
from disagg_run.running.environment import TOKEN

#: Bytes of a secret: fewer can be guessed, and more do not fit into an agent's first message.
_SHORTEST, _LONGEST = 16, 4096


def new_token() -> str:
    """A secret for one run."""
    return secrets.token_hex(32)


def read_token(path: Path | None, *, needed: bool, environ: Mapping[str, str] | None = None) -> str:
    """The run's secret: from ``path``, else from DISAGG_RUN_TOKEN; "" where none is given and none is needed.

    ``environ``: where the variable is looked up; None = this process's environment.
    Raises UsageError for a secret that is too short or too long, and for a file that others may read or that is not
    there.
    """
    if path is not None:
        return _from_file(path)
    token = (os.environ if environ is None else environ).get(TOKEN, "")
    if needed and not token:
        raise UsageError(
            "the agents of a run need a secret in common",
            remedy=f"give each the same --token-file (mode 0600), or {TOKEN} in its environment",
        )
    return _checked(os.fsencode(token), TOKEN) if token else ""


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(2 * _LONGEST)
    except OSError as error:
        raise UsageError(f"the token file {str(path)!r} cannot be read: {os_reason(error)}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(
            f"the token file {str(path)!r} has mode {stat.S_IMODE(mode):04o}, so that others can use it",
            remedy=f"chmod 600 {path}",
        )
    return _checked(token.strip(), repr(str(path)))


def _checked(token: bytes, place: str) -> str:
    """The secret as text; its value is never shown."""
    if not _SHORTEST <= len(token) <= _LONGEST:
        size = f"more than {_LONGEST}" if len(token) > _LONGEST else str(len(token))
        raise UsageError(
            f"the token in {place} has {size} bytes",
            remedy=f"give {_SHORTEST} to {_LONGEST}, for example from 'openssl rand -hex 32'",
        )
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(
            f"the token in {place} is no UTF-8 text", remedy="make one with 'openssl rand -hex 32'"
        ) from None
