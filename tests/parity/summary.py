"""Print the tables of right differences: ``python -m tests.parity.summary``."""

from __future__ import annotations

from tests.parity.case import COMPARED
from tests.parity.differences import lines


def main() -> None:
    """Print every compared engine's table."""
    for engine in COMPARED:
        print("\n".join(lines(engine)))


if __name__ == "__main__":
    main()
