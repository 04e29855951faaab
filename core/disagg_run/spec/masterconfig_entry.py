"""One entry of a master config, read strictly into its points.

An entry, in YAML::

    toy-fp4-disagg:
      image: toy/server:v1.2.0
      model: maker/Toy-7B              # the table's name may be the last part of it
      model-prefix: toy                # this, runner and precision are labels: nothing of a plan follows
      runner: some-cluster
      precision: fp4
      framework: toy-disagg            # the engine plugin
      router: {name: toy-router, version: 0.3.2}
      kv-p2p-transfer: link            # the connector, in the engine's word for it
      multinode: true
      disagg: true
      scenarios:
        fixed-seq-len:
        - isl: 8192
          osl: 1024
          search-space:
          - spec-decoding: none        # or mtp; the tokens are DECODE_MTP_SIZE in additional-settings
            conc-list: [8, 16]
            prefill:
              num-worker: 1
              tp: 8                    # of a node, not of a worker
              ep: 1
              dp-attn: false
              additional-settings: ["PREFILL_NODES=1"]
            decode: {…}

``tp`` is of a node and ``*_NODES`` counts nodes, so a worker has nodes * tp / workers GPUs; without ``*_NODES`` each
worker has a node. What else stands in ``additional-settings`` are variables of the environment contract, with the
meaning that they have there: of both roles, unless their name says one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from disagg_run.errors import SpecError
from disagg_run.spec.layers import Assignment, Place, assign
from disagg_run.spec.masterconfig_node import ConfigNode
from disagg_run.spec.masterconfig_point import Point, RoleShape
from disagg_run.spec.model import ROLES, Role, as_tuple
from disagg_run.spec.options import by_dotted
from disagg_run.spec.values import BadValueError, variable_name
from disagg_run.topology_needs import count

#: The scenario whose points are launches; others tell a client what to send.
SCENARIO = "fixed-seq-len"

_NEEDED = ("model", "framework", "scenarios")
_KINDS = ("disagg", "multinode")
_LABELS = ("model-prefix", "runner", "precision")
_OTHERS = ("image", "router", "kv-p2p-transfer")
_SPECULATION = ("none", "mtp")


@attrs.frozen(kw_only=True)
class Entry:
    """One entry, read whole."""

    name: str
    #: In the order of the file: scenario by scenario, search space by search space.
    points: tuple[Point, ...] = attrs.field(converter=as_tuple)

    def point(self, number: int | None) -> Point:
        """The point of that number, or the only one; SpecError where there is none or a choice."""
        if number is None and len(self.points) == 1:
            return self.points[0]
        if number is None:
            raise SpecError(
                f"entry {self.name!r} has {len(self.points)} points",
                remedy=f"choose one with --point: {'; '.join(map(str, self.points))}",
            )
        if not 0 <= number < len(self.points):
            raise SpecError(
                f"entry {self.name!r} has no point {number}", remedy=f"its points are 0 to {len(self.points) - 1}"
            )
        return self.points[number]


def read_entry(name: str, node: ConfigNode) -> Entry:
    """The entry at ``node``; SpecError with file and line for the first thing in it that is wrong."""
    for key in _KINDS:
        if isinstance(node.value, dict) and not (key in node.value and node.below(key).switch()):
            raise node.error(
                f"entry {name!r} is not for prefill and decode servers on nodes of their own: {key} is not true",
                remedy="take another entry",
            )
    keys = node.mapping(needed=_NEEDED, others=(*_KINDS, *_LABELS, *_OTHERS))
    for key in _LABELS:
        if key in keys:
            keys[key].text()
    common = [_given("engine", keys["framework"])]
    if "image" in keys:
        common.append(_given("image", keys["image"]))
    router = keys["router"].mapping(needed=("name",), others=("version",)) if "router" in keys else {}
    if "version" in router:
        common.append(_given("router.version", router["version"]))
    named = {key: (keys[key].text(), keys[key].place()) for key in ("model", "kv-p2p-transfer") if key in keys}
    if router:
        named["router"] = (router["name"].text(), router["name"].place())
    points: list[Point] = []
    for run_index, space_index, run, space in _runs(keys["scenarios"]):
        point = Point(
            entry=name,
            number=len(points),
            scenario=f"{SCENARIO}[{run_index}].search-space[{space_index}]",
            named=named,
            **_read_point(run, space, common),
        )
        points.append(point)
    return Entry(name=name, points=points)


def _runs(scenarios: ConfigNode) -> Iterator[tuple[int, int, Mapping[str, ConfigNode], ConfigNode]]:
    """Every search space with its scenario's keys and the indexes of both."""
    if not isinstance(scenarios.value, dict) or SCENARIO not in scenarios.value:
        has = ", ".join(map(repr, scenarios.value)) if isinstance(scenarios.value, dict) else "none"
        raise scenarios.error(
            f"there is no scenario {SCENARIO!r}, the only one that a launch follows from (it has {has or 'none'})"
        )
    for run_index, run in enumerate(scenarios.below(SCENARIO).items()):
        keys = run.mapping(needed=("isl", "osl", "search-space"))
        for space_index, space in enumerate(keys["search-space"].items()):
            yield run_index, space_index, keys, space


def _read_point(run: Mapping[str, ConfigNode], space: ConfigNode, common: list[Assignment]) -> dict[str, Any]:
    keys = space.mapping(needed=("conc-list", "prefill", "decode"), others=("spec-decoding",))
    concurrency = [each.whole(1) for each in keys["conc-list"].items()]
    found = [*common, _given("bench.input_len", run["isl"]), _given("bench.output_len", run["osl"])]
    found += _assigned("bench.concurrency", "x".join(map(str, concurrency)), keys["conc-list"].place())
    variables: dict[str, tuple[str, Place]] = {}
    shapes: dict[Role, RoleShape] = {}
    for role in ROLES:
        part = keys[role].mapping(needed=("num-worker", "tp"), others=("ep", "dp-attn", "additional-settings"))
        if "additional-settings" in part:
            _read_variables(part["additional-settings"], variables)
        shapes[role] = _shape(role, part, variables)
        found += _role_assignments(shapes[role], part)
    return {
        "input_len": run["isl"].whole(1),
        "output_len": run["osl"].whole(1),
        "concurrency": concurrency,
        "shapes": shapes,
        "assignments": found,
        "variables": variables,
        "speculation": _speculation(keys.get("spec-decoding"), variables),
    }


def _read_variables(node: ConfigNode, variables: dict[str, tuple[str, Place]]) -> None:
    """Add the ``KEY=VALUE`` texts of a role's list; the same key twice must say the same."""
    for item in node.items():
        name, equals, value = item.text().partition("=")
        name, value = name.strip(), value.strip()
        try:
            variable_name(name)
        except BadValueError as error:
            raise item.error(f"{item.text()!r} is not KEY=VALUE: {error}") from None
        if not equals:
            raise item.error(f"{item.text()!r} is not KEY=VALUE")
        before = variables.get(name)
        if before is not None and before[0] != value:
            raise item.error(
                f"{name}={value} stands here and {name}={before[0]} at {before[1].source.where}",
                remedy="keep one: it is a variable of the whole launch",
            )
        variables.setdefault(name, (value, item.place(name)))


def _shape(role: Role, part: Mapping[str, ConfigNode], variables: dict[str, tuple[str, Place]]) -> RoleShape:
    workers, tp = part["num-worker"].whole(1), part["tp"].whole(1)
    nodes, place = workers, part["tp"].place()
    counted = variables.pop(f"{role.upper()}_NODES", None)
    if counted is not None:
        text, place = counted
        if not (text.isascii() and text.isdigit()) or int(text) < 1:
            raise place.error(f"{text!r} is no number of nodes")
        nodes = int(text)
    if nodes % workers and workers % nodes:
        raise place.error(f"{count(workers, f'{role} worker')} cannot be spread evenly over {count(nodes, 'node')}")
    if nodes * tp % workers:
        raise part["tp"].error(
            f"{tp} GPUs of {count(nodes, 'node')} cannot be shared evenly by {count(workers, f'{role} worker')}",
            remedy="tp is of a node: nodes * tp / num-worker must be the GPUs of a worker",
        )
    ep = part["ep"].whole(1) if "ep" in part else 1
    gpus = nodes * tp // workers
    if ep not in (1, tp, gpus):
        raise part["ep"].error(
            f"ep is {ep} with tp {tp}", remedy=f"experts are spread over all GPUs ({tp}) or none (1)"
        )
    return RoleShape(
        role=role,
        workers=workers,
        nodes=nodes,
        tp=tp,
        gpus=gpus,
        ep=ep > 1,
        dp_attention=part["dp-attn"].switch() if "dp-attn" in part else False,
        counted=counted[1] if counted is not None else None,
        place=part["tp"].place(),
    )


def _role_assignments(shape: RoleShape, part: Mapping[str, ConfigNode]) -> Iterator[Assignment]:
    role = shape.role
    yield _given(f"{role}.workers", part["num-worker"])
    why = f"{shape.tp} GPUs of {count(shape.nodes, 'node')} for {count(shape.workers, 'worker')}"
    tp = attrs.evolve(shape.place, source=attrs.evolve(shape.place.source, why=why))
    yield from _assigned(f"{role}.tp", str(shape.gpus), tp)
    if "ep" in part:
        yield from _assigned(f"{role}.expert_parallel", str(shape.ep).lower(), part["ep"].place())
    if "dp-attn" in part:
        yield from _assigned(f"{role}.dp_attention", str(shape.dp_attention).lower(), part["dp-attn"].place())
    if shape.counted is not None:
        yield from _assigned(f"{role}.nodes", str(shape.nodes), shape.counted)


def _speculation(node: ConfigNode | None, variables: Mapping[str, tuple[str, Place]]) -> str:
    how = "none" if node is None else node.text()
    if node is not None and how not in _SPECULATION:
        raise node.error(f"spec-decoding {how!r} is not one of {', '.join(_SPECULATION)}")
    tokens, place = variables.get("DECODE_MTP_SIZE", ("", None))
    speculates = tokens not in ("", "0", "none", "false")
    if node is not None and how == "mtp" and not speculates:
        raise node.error("spec-decoding is mtp, but nothing says how many tokens", remedy="add DECODE_MTP_SIZE=N")
    if place is not None and how == "none" and speculates:
        where = f" at {node.place().source.where}" if node is not None else ""
        raise place.error(f"DECODE_MTP_SIZE={tokens} beside spec-decoding none{where}", remedy="make the two agree")
    return how


def _given(dotted: str, node: ConfigNode) -> Assignment:
    return _assigned(dotted, node.text(), node.place())[0]


def _assigned(dotted: str, text: str, place: Place) -> list[Assignment]:
    return [each for each in assign(by_dotted()[dotted], text, place) if isinstance(each, Assignment)]
