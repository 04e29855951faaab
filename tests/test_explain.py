"""Who set a value: for flags, JSON keys, variables, ports and waits, with what was replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from disagg_run.declarations import CatalogueRef
from disagg_run.errors import DisaggError, PlanError, SpecError
from disagg_run.explain import Explanation, explain, render_explanations
from disagg_run.planning.document import (
    After,
    Group,
    LaunchPlan,
    PlannedModel,
    PlannedProcess,
    RankPlan,
    Ready,
)
from disagg_run.planning.provenance import SourceTable
from disagg_run.records import Patch
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import Node

ENGINE = Source(layer=Layer.ENGINE, plugin="toy-disagg")
MODEL = Source(layer=Layer.MODEL, plugin="toy-disagg", where="models.yaml:12")
LINK = Source(layer=Layer.CONNECTOR, plugin="toy-link")
RUN_FILE = Source(layer=Layer.RUN_FILE, where="toy.yaml:7")
USER = Source(layer=Layer.COMMAND_LINE, where="--prefill-args")
SITE = Source(layer=Layer.SITE, plugin="toy-site")

LINK_CONFIG = {"role": "producer", "extra": {"mode": "READ", "odd.key": [1, 2]}, "size": 3}


def server(name: str, block_size: str) -> PlannedProcess:
    argv = ["toy-server", "--block-size", block_size, "--fast", "--seed=-7", "--rule", "a b", "--rule", "c"]
    return PlannedProcess(
        name=name,
        kind="server",
        role="prefill" if name.startswith("prefill") else "decode",
        argv=[*argv, "--link", json.dumps(LINK_CONFIG), "--a/b~c", "1", "2"],
        env={"TOY_MODE": "x", "EMPTY": ""},
        env_prepend={"PATH": ("/site", "/opt")},
        env_append={"PATH": ("/last",)},
        unset=["DEBUG"],
        secrets=["TOKEN"],
        gpus=[0, 1],
        ports={"http": 8010, "handshake": 6301},
        port_counts={"handshake": 8},
        ready=[Ready(kind="http", target="http://h:8010/health", timeout_s=60, identity={"listener": "http"})],
        after=[After(process="routes", until="ready"), After(process="store", until="ready")],
    )


def provenance(block_size: list[tuple[Source, str]]) -> dict[str, Any]:
    return {
        "argv/--block-size": block_size,
        "argv/--fast": [(ENGINE, "")],
        "argv/--seed": [(USER, "-7"), (ENGINE, "0")],
        "argv/--rule": [(ENGINE, "'a b'"), (USER, "c")],
        "argv/--link": [(USER, "{…}"), (LINK, "size=2"), (ENGINE, "size=1"), (LINK, 'extra.mode="WRITE"')],
        "argv/--link/role": [(LINK, "")],
        "argv/--link/size": [(USER, "")],
        "argv/--link/extra.mode": [(RUN_FILE, "")],
        'argv/--link/extra."odd.key"': [(LINK, "")],
        "argv/--a~1b~0c": [(MODEL, "1 2")],
        "env/TOY_MODE": [(RUN_FILE, "x"), (ENGINE, "y")],
        "env/EMPTY": [(ENGINE, "")],
        "env_prepend/PATH": [(SITE, "/site"), (ENGINE, "/opt")],
        "env_append/PATH": [(ENGINE, "/last")],
        "unset/DEBUG": [(SITE, "unset"), (ENGINE, "1")],
        "secrets/TOKEN": [(RUN_FILE, "secret")],
        "ports/http": [(ENGINE, "8010")],
        "ports/handshake": [(LINK, "6301")],
    }


def toy_plan() -> LaunchPlan:
    first = [(RUN_FILE, "16"), (MODEL, "64"), (ENGINE, "1")]
    second = [(MODEL, "64"), (ENGINE, "1")]
    sources: dict[str, Any] = {"/engine_version": [(ENGINE, "1.0")], "/engine": [(USER, "toy-disagg")]}
    ranks = []
    for rank, (name, size, chain) in enumerate(
        [("prefill-0", "16", first), ("prefill-1", "16", first), ("decode-0", "64", second)]
    ):
        follower = PlannedProcess(
            name=f"x-{rank}", kind="service", argv=["toy"], after=[After(process=name, until="started")]
        )
        patch = Patch(id="toy-fix", why="it waits for ever", package=["toy"], file="toy/a.py")
        groups = [Group(processes=[follower]), Group(patches=[patch], processes=[server(name, size)])]
        ranks.append(RankPlan(rank=rank, node=Node(name=f"n{rank}", address=f"192.0.2.{rank + 1}"), groups=groups))
        prefix = f"/ranks/{rank}/groups/1"
        sources[f"{prefix}/patches/toy-fix"] = [(USER, "")]
        for key, entries in provenance(chain).items():
            sources[f"{prefix}/processes/0/{key}"] = entries
    return LaunchPlan(
        engine="toy-disagg",
        engine_version="1.0",
        connector="toy-link",
        model=PlannedModel(name="toy-7b", path="/models/toy-7b", served_name="toy"),
        bound=True,
        ranks=ranks,
        sources=SourceTable(values={key: tuple(entries) for key, entries in sources.items()}),
    )


PLAN = toy_plan()
ALL = ("prefill-0", "prefill-1", "decode-0")


def one(query: str, **how: Any) -> Explanation:
    (found,) = explain(PLAN, query, **how)
    return found


def test_a_flag_is_explained_with_what_it_replaced_and_equal_processes_stand_together() -> None:
    prefill, decode = explain(PLAN, "--block-size")
    assert prefill == Explanation(
        name="--block-size",
        value="16",
        source=RUN_FILE,
        replaced=[(MODEL, "64"), (ENGINE, "1")],
        processes=["prefill-0", "prefill-1"],
    )
    assert (decode.value, decode.source, decode.processes) == ("64", MODEL, ("decode-0",))
    assert render_explanations([prefill, decode]) == (
        "--block-size = 16  (prefill-0, prefill-1)\n"
        "  set by    run file toy.yaml:7\n"
        "  replaces  64  from model table models.yaml:12 (plugin toy-disagg)\n"
        "  replaces  1  from engine default (plugin toy-disagg)\n"
        "--block-size = 64  (decode-0)\n"
        "  set by    model table models.yaml:12 (plugin toy-disagg)\n"
        "  replaces  1  from engine default (plugin toy-disagg)\n"
    )


@pytest.mark.parametrize("query", ["--block_size", "block-size", "-block-size"])
def test_a_flag_is_found_by_any_spelling(query: str) -> None:
    assert [found.name for found in explain(PLAN, query)] == ["--block-size", "--block-size"]


def test_a_flag_is_found_by_its_alias_and_its_negation_where_the_engines_catalogue_knows_them(tmp_path: Path) -> None:
    flags: list[dict[str, Any]] = [
        {"names": ["--block-size", "--bs"], "arity": 1, "type": "int", "kind": "int"},
        {"names": ["--slow", "--fast"], "arity": 0},
        {"names": ["--transfer", "--link"], "arity": 1, "type": "json.loads", "kind": "json"},
    ]
    file = tmp_path / "toy.json"
    file.write_text(json.dumps({"schema": 1, "command": "toy-server", "version": "1.0", "flags": flags}))
    refs = [CatalogueRef(program="server", version="1.0", file=file)]
    assert [found.name for found in explain(PLAN, "--bs", catalogues=refs)] == ["--block-size", "--block-size"]
    assert one("slow", catalogues=refs).name == "--fast"
    assert one("--transfer.size", catalogues=refs).name == "--link.size"
    with pytest.raises(PlanError, match="nothing in the plan is called '--bs'"):
        explain(PLAN, "--bs")


def test_a_flag_that_its_program_has_and_nobody_sets_is_said_to_be_not_set(tmp_path: Path) -> None:
    flags = [{"names": ["--page-size", "--ps"], "arity": 1}]
    file = tmp_path / "toy.json"
    file.write_text(json.dumps({"schema": 1, "command": "toy-server", "version": "1.0", "flags": flags}))
    refs = [CatalogueRef(program="server", version="1.0", file=file)]
    for spelling in ("--page-size", "page-size", "--ps"):
        answer = one(spelling, catalogues=refs)
        assert (answer.name, answer.value, answer.processes) == ("--page-size", "not set", ALL)
    assert one("--page-size", process="decode-0", catalogues=refs).processes == ("decode-0",)
    with pytest.raises(PlanError, match=r"called '--page-siz': did you mean '--page-size'\?"):
        explain(PLAN, "--page-siz", catalogues=refs)


def test_one_process_or_one_role_can_be_asked_for() -> None:
    assert one("prefill-1:--block-size").processes == ("prefill-1",)
    assert one("--block-size", process="prefill-1").processes == ("prefill-1",)
    assert one("prefill:--block-size").processes == ("prefill-0", "prefill-1")
    with pytest.raises(SpecError, match=r"no process 'prefil-0': did you mean 'prefill-0'\?"):
        explain(PLAN, "prefil-0:--block-size")


def test_switches_negative_values_and_repeated_flags_show_their_values() -> None:
    assert one("--fast").value == "set (a switch)"
    assert (one("--seed").value, one("--seed").replaced) == ("-7", ((ENGINE, "0"),))
    assert [(found.value, found.source, found.replaced) for found in explain(PLAN, "--rule")] == [
        ("'a b'", ENGINE, ()),
        ("c", USER, ()),
    ]


def test_a_key_of_a_json_flag_has_its_own_source_and_its_own_replaced_values() -> None:
    size = one("--link.size")
    assert (size.name, size.value, size.source) == ("--link.size", "3", USER)
    assert size.replaced == ((LINK, "2"), (ENGINE, "1"))
    assert one("link.extra.mode") == Explanation(
        name="--link.extra.mode", value='"READ"', source=RUN_FILE, replaced=[(LINK, '"WRITE"')], processes=ALL
    )
    assert one('--link.extra."odd.key"').value == "[1,2]"
    assert [found.name for found in explain(PLAN, "--link")] == [
        "--link.role",
        "--link.extra.mode",
        '--link.extra."odd.key"',
        "--link.size",
    ]


def test_names_that_need_escaping_in_a_json_pointer_are_found() -> None:
    assert (one("--a/b~c").value, one("--a/b~c").source) == ("1 2", MODEL)


def test_variables_are_explained_whatever_was_done_to_them() -> None:
    assert (one("TOY_MODE").value, one("TOY_MODE").replaced) == ("x", ((ENGINE, "y"),))
    assert [(found.value, found.source) for found in explain(PLAN, "PATH")] == [
        ("prepend /site", SITE),
        ("prepend /opt", ENGINE),
        ("append /last", ENGINE),
    ]
    assert one("DEBUG").value == "not passed on"
    assert one("DEBUG").replaced == ((ENGINE, "1"),)
    assert one("TOKEN").value == "passed on from the agent's environment by name"
    assert render_explanations(explain(PLAN, "EMPTY")).startswith("EMPTY = (empty)  (prefill-0, prefill-1, decode-0)\n")


def test_ports_proofs_waits_gpus_and_patches_are_explained() -> None:
    assert (one("http").value, one("http").source) == ("8010", ENGINE)
    assert (one("handshake").value, one("handshake").source) == ("6301-6308", LINK)
    assert (one("ready").value, one("ready").source) == ("http http://h:8010/health within 60 s", ENGINE)
    assert one("gpus").value == "0,1"
    assert (one("toy-fix", process="decode-0").value, one("toy-fix").source) == ("it waits for ever", USER)
    waits = {found.value: found for found in explain(PLAN, "after")}
    assert waits["routes, store ready"].processes == ALL
    assert "a follower starts when" in str(waits["decode-0 started"].source)


def test_values_of_the_whole_plan_are_explained() -> None:
    assert one("engine_version") == Explanation(name="engine_version", value="1.0", source=ENGINE)
    assert render_explanations([one("engine")]) == "engine = toy-disagg\n  set by    command line --prefill-args\n"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("--blok-size", "nothing in the plan is called '--blok-size': did you mean '--block-size'?"),
        ("TOY_MOD", "did you mean 'TOY_MODE'?"),
        ("--link.extra.mod", "did you mean '--link.extra.mode'?"),
        ("htp", "did you mean 'http'?"),
        ("engine_versio", "did you mean 'engine_version'?"),
        ("decode-0:--blok", "nothing in decode-0 is called '--blok'"),
        ("?", "it has after, ready, gpus, --block-size, --fast, --seed"),
        ("", "nothing in the plan is called ''"),
        ("ib_devices", "'ib_devices': --ib-devices is an option: ask for a flag or variable that follows from it"),
        ("prefill.tp", "--prefill-tp is an option"),
        ("xP", "--prefill is an option"),
    ],
)
def test_an_unknown_name_is_one_line_with_the_nearest(query: str, words: str) -> None:
    with pytest.raises(DisaggError) as caught:
        explain(PLAN, query)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_that_was_read_back_does_not_know_its_sources() -> None:
    with pytest.raises(PlanError, match="does not say who set its values"):
        explain(LaunchPlan.from_json(PLAN.to_json()), "--block-size")


def test_values_that_would_break_a_line_are_escaped() -> None:
    odd = attrs.evolve(one("http"), value="a\nb\x1b", source=None)
    assert render_explanations([odd]).splitlines()[:2] == [
        "http = a\\nb\\x1b  (prefill-0, prefill-1, decode-0)",
        "  set by    not recorded",
    ]
    assert render_explanations([]) == ""
