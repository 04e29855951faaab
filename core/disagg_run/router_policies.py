"""Settings that every router with a policy for each role has, as job scripts name them."""

from __future__ import annotations

from disagg_run.declarations import Setting


def router_policies(*, prefill: str = "policy among prefill workers") -> tuple[Setting, Setting]:
    """The settings ``prefill_router_policy`` and ``decode_router_policy``; ``prefill``: summary of the former.

    Job scripts export ``random`` where nobody chose one (the public launchers' default), which is no choice.
    """
    return (
        Setting(
            name="prefill_router_policy",
            type="str",
            summary=prefill,
            env={"PREFILL_ROUTER_POLICY": None},
            unset_values=("random",),
        ),
        Setting(
            name="decode_router_policy",
            type="str",
            summary="policy among decode workers",
            env={"DECODE_ROUTER_POLICY": None},
            unset_values=("random",),
        ),
    )
