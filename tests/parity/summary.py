"""Print how many cases equal ours and the tables of right differences: ``python -m tests.parity.summary``."""

from __future__ import annotations

from tests.parity.case import COMPARED, names
from tests.parity.differences import count_line, lines


def main() -> None:
    """Print the count, then every compared engine's table."""
    print(count_line(names(*COMPARED)))
    for engine in COMPARED:
        print("\n".join(lines(engine)))


if __name__ == "__main__":
    main()
