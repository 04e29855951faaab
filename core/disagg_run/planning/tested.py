"""Whether engine, connector and router of a plan were seen to work together."""

from __future__ import annotations

from disagg_run.declarations import Combination, Engine, Extension
from disagg_run.planning.resolve import in_range
from disagg_run.spec.model import LaunchSpec


def untested_remark(engine: Engine, connector: Extension, spec: LaunchSpec, *, version: str, router: str) -> str:
    """A warning for a combination that the plugins do not know to work; "" where they do, or say nothing of any.

    ``version``: the engine's; ``router``: the router's as far as it is stated, else that of the newest catalogue. An
    engine's release may ask for what the router of the day does not send (fault B95): both start, and requests fail. So
    no run is called serving before a generation has come through the router.
    """
    tested = (*engine.tested, *connector.tested)
    router = "" if spec.image and spec.router.image and not spec.router.version else router
    if not tested or any(_covers(each, engine, connector.name, version, router) for each in tested):
        return ""
    build = f"router {router}" if router else "a router image of no stated version (--router-version)"
    then = "the run serves only once one has come through the router"
    if spec.router.mode == "external":
        then = "let one come through your router before you trust the launch"
    own = [f"{each.engine} with router {each.router}" for each in tested if connector.name in each.connectors]
    known = f"tested are {' and '.join(own)}" if own else f"none is tested with {connector.name}"
    return (
        f"{engine.name} {version}, {connector.name} and {build} were not tested together ({known}): generations may"
        f" fail although all start, so {then}"
    )


def _covers(tested: Combination, engine: Engine, connector: str, version: str, router: str) -> bool:
    return (
        connector in tested.connectors
        and in_range(version, tested.engine, plugin=engine.name)
        and bool(router)
        and in_range(router, tested.router, plugin=engine.name)
    )
