"""Variables of the environment contract that are for the client, for engines that need nothing of them."""

from __future__ import annotations

#: By name, why servers are started the same with them and without.
CLIENT_VARIABLES = dict.fromkeys(
    ("RUN_EVAL", "EVAL_ONLY"), "the client judges answers; the servers need nothing for it"
)
