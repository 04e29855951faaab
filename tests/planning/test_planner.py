"""The planner: merging, order, determinism, and what no plan may contain."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run import (
    ArgText,
    ConflictError,
    DisaggError,
    LaunchPlan,
    LaunchSpec,
    Layer,
    Node,
    PortError,
    ProcessSpec,
    RoleSpec,
    RouterSpec,
    Source,
    SpecError,
    flag,
    plan,
)
from tests.planning.toy import HOST, Site, ToyStore, spec, toy_host, values

#: Who asked, in some tests.
TYPED = Source(layer=Layer.COMMAND_LINE, where="--option")


def test_each_worker_has_a_rank_and_the_router_is_on_rank_0() -> None:
    made = plan(spec(prefill=RoleSpec(workers=2)), host=HOST)
    assert [[each.name for each in rank.processes()] for rank in made.ranks] == [
        ["prefill-0", "router"],
        ["prefill-1"],
        ["decode-0"],
    ]
    assert [edge.process for edge in made.process("router").after] == ["prefill-0", "prefill-1", "decode-0"]


def test_followers_wait_for_the_start_of_their_head_and_never_for_its_readiness() -> None:
    made = plan(spec(decode=RoleSpec(tp=16)), host=HOST)
    follower = made.process("decode-0.1")
    assert [(edge.process, edge.until) for edge in follower.after] == [("decode-0", "started")]
    assert values(made, "decode-0.1", "--node-rank") == ["1"]
    assert [edge.process for edge in made.process("router").after] == ["prefill-0", "decode-0"]


def test_services_and_setups_come_before_servers_and_get_their_ports() -> None:
    made = plan(spec(), host=toy_host(ToyStore()))
    assert {edge.process for edge in made.process("decode-0").after} == {"route@1", "store"}
    store = made.process("store")
    assert values(made, "store", "--rpc-port") == [str(store.ports["rpc"])]
    assert store.ports["rpc"] != made.process("prefill-0").ports["http"]
    assert made.process("route@0").ready[0].kind == "exit"


def test_two_plugins_setting_one_variable_is_an_error_that_names_both() -> None:
    host = toy_host(Site("site-a", env={"X": "1"}), Site("site-b", env={"X": "2"}))
    with pytest.raises(ConflictError, match=r"'site-a' and 'site-b' both set X of prefill-0"):
        plan(spec(), host=host)


def test_two_plugins_setting_one_flag_is_an_error_that_names_both() -> None:
    host = toy_host(Site("site-a", flags=[flag("--x", 1)]), Site("site-b", flags=[flag("--x", 2)]))
    with pytest.raises(ConflictError, match=r"site-a.*site-b"):
        plan(spec(), host=host)


def test_the_users_value_replaces_the_plugins_and_the_sources_show_both() -> None:
    asked = spec(env={"TOY_LEVEL": "9"}, sources={"env.TOY_LEVEL": Source(layer=Layer.RUN_FILE, where="a.yaml:3")})
    made = plan(asked, host=HOST)
    assert made.process("prefill-0").env["TOY_LEVEL"] == "9"
    assert made.sources is not None
    chain = made.sources.values["/ranks/0/groups/0/processes/0/env/TOY_LEVEL"]
    assert [(str(source), text) for source, text in chain] == [
        ("run file a.yaml:3", "9"),
        ("engine default (plugin toy-disagg)", "1"),
    ]


def test_a_narrower_target_wins_within_one_layer() -> None:
    asked = spec(
        env={"A": "all"},
        decode=RoleSpec(env={"A": "decode"}),
        processes={"decode-0": ProcessSpec(env={"A": "own"}, args=(ArgText(words=("--seed", "2")),))},
        args=(ArgText(words=("--seed", "1")),),
    )
    made = plan(asked, host=HOST)
    assert made.process("prefill-0").env["A"] == "all"
    assert made.process("decode-0").env["A"] == "own"
    assert values(made, "prefill-0", "--seed") == ["1"]
    assert values(made, "decode-0", "--seed") == ["2"]


def test_a_port_set_by_hand_beside_the_plan_is_refused() -> None:
    asked = spec(args=(ArgText(words=("--port", "9000")),))
    with pytest.raises(PortError, match=r"--port of prefill-0 says '9000' .* but the plan gives it port 8000"):
        plan(asked, host=HOST)
    same = plan(spec(args=(ArgText(words=("--port", "8000")),)), host=HOST)
    assert values(same, "prefill-0", "--port") == ["8000"]


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": {"decode-7": ProcessSpec(env={"A": "1"})}},
        {"simulate": True, "simulation": {"decode-7": ("--x",)}},
    ],
)
def test_what_is_asked_of_a_process_that_the_plan_does_not_have_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=r"for 'decode-7', but the plan has no such process: did you mean 'decode-0'"):
        plan(spec(**changes), host=HOST)


def test_a_simulation_without_stand_ins_says_that_real_programs_are_started() -> None:
    (first, second) = plan(spec(simulate=True), host=HOST).warnings
    assert first.message == "toy-disagg names no stand-in for a server: the real program is started"
    assert "for a router" in second.message
    assert not plan(spec(), host=HOST).warnings


def test_options_of_stand_ins_without_a_simulation_are_refused_where_they_are_typed() -> None:
    options = {"simulation": {"decode": ("--load-s", "1")}}
    with pytest.raises(SpecError, match=r"command line --option is for stand-ins, but this is no simulation"):
        plan(spec(**options, sources={"simulation.decode": TYPED}), host=HOST)
    kept = Source(layer=Layer.RUN_FILE, where="r.yaml:7")
    assert plan(spec(**options, sources={"simulation.decode": kept}), host=HOST).ranks


def test_a_waiver_that_is_a_slip_is_refused_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"waived as 'block-sise' \(command line --option\): did you mean 'block-size'"):
        plan(spec(waive=("block-sise",), sources={"waive.block-sise": TYPED}), host=HOST)


def test_the_default_connector_is_the_engines_choice() -> None:
    made = plan(spec(), host=HOST)
    assert made.sources is not None
    ((source, name),) = made.sources.values["/connector"]
    assert (str(source), name) == ("engine default (plugin toy-disagg): its default connector", "toy-link")
    asked = spec(connector="toy-link", sources={"connector": TYPED})
    chosen = plan(asked, host=HOST)
    assert chosen.sources is not None
    assert chosen.sources.values["/connector"][0][0] == TYPED


def test_a_moved_port_shows_the_default_that_it_could_not_have() -> None:
    made = plan(spec(nodes=[Node(address="10.0.0.1")], prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4)), host=HOST)
    assert made.sources is not None
    chain = made.sources.values["/ranks/0/groups/0/processes/1/ports/http"]
    assert [text for _, text in chain] == [str(made.process("decode-0").ports["http"]), "8000"]
    assert "8000 is taken" in str(chain[0][0])


def test_an_external_router_is_not_in_the_plan() -> None:
    made = plan(spec(router=RouterSpec(mode="external")), host=HOST)
    assert made.process_names() == ("prefill-0", "decode-0")


def test_secrets_stand_by_name_only() -> None:
    made = plan(spec(secrets=("HF_TOKEN",)), host=HOST)
    assert made.process("decode-0").secrets == ("HF_TOKEN",)
    assert "HF_TOKEN" not in made.process("decode-0").env


def test_a_version_in_the_image_tag_is_planned_for_and_a_foreign_number_is_not() -> None:
    assert plan(spec(image="toy/engine:v1.4.2-gpu"), host=HOST).engine_version == "1.4.2"
    assert plan(spec(image="toy/engine:rocm7.2.0-nightly"), host=HOST).engine_version == "1.2.0"
    assert plan(spec(engine_version="1.9"), host=HOST).engine_version == "1.9"
    with pytest.raises(SpecError, match="plans for versions >=1"):
        plan(spec(engine_version="0.9"), host=HOST)


def test_an_unknown_model_is_refused_with_the_tables_names() -> None:
    with pytest.raises(SpecError, match=r"did you mean 'toy-model'\? its table has toy-model, toy-small"):
        plan(attrs.evolve(spec(), model="toy-modle"), host=HOST)


def test_a_plan_document_read_back_is_the_plan_and_damage_is_refused() -> None:
    made = plan(spec(prefill=RoleSpec(workers=2), decode=RoleSpec(tp=16)), host=toy_host(ToyStore()))
    text = made.to_json()
    again = LaunchPlan.from_json(text)
    assert again == made
    assert again.to_json() == text
    for damaged, message in [
        (text.replace("toy-server", "toy-servant", 1), "digest"),
        (text.replace('"schema":1', '"schema":7', 1), "schema 7"),
        (text.replace('"bound"', '"bownd"', 1), "bownd"),
        (text[:-3], "no JSON"),
        ("[]", "no JSON object"),
        ('{"schema": 1, "a": 1}', "is no plan"),
    ]:
        with pytest.raises(SpecError, match=message):
            LaunchPlan.from_json(damaged)


def test_the_same_inputs_give_the_same_bytes_under_two_hash_seeds_and_directories(tmp_path: Path) -> None:
    script = (
        "from tests.planning.toy import ToyStore, toy_host\n"
        "from disagg_run import LaunchSpec, RoleSpec, plan\n"
        "s = LaunchSpec(engine='toy-disagg', model='toy-model', prefill=RoleSpec(workers=3), decode=RoleSpec(tp=16),"
        " env={'B': '1', 'A': '2'})\n"
        "print(plan(s, host=toy_host(ToyStore())).to_json(), end='')\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    outputs = set()
    for seed, directory in (("1", tmp_path), ("2", Path(root))):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": root, "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", script], cwd=directory, env=env, capture_output=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


roles = st.builds(
    RoleSpec,
    workers=st.integers(0, 6),
    tp=st.sampled_from([None, 0, 1, 2, 3, 4, 8, 16]),
    pp=st.sampled_from([1, 1, 1, 2]),
    dp=st.sampled_from([1, 1, 2, 4]),
    nodes=st.sampled_from([None, None, None, 1, 2, 4]),
)

specs = st.builds(
    spec,
    prefill=roles,
    decode=roles,
    gpus_per_node=st.sampled_from([1, 4, 8]),
    pack=st.booleans(),
    simulate=st.booleans(),
    router=st.builds(RouterSpec, mode=st.sampled_from(["plan", "external"])),
    nodes=st.one_of(
        st.just(()),
        st.integers(1, 12).map(lambda count: tuple(Node(address=f"10.0.0.{index + 1}") for index in range(count))),
    ),
)

STORED = toy_host(ToyStore())


@given(asked=specs, stored=st.booleans())
def test_no_plan_uses_a_port_a_gpu_or_a_name_twice_or_waits_in_a_circle(asked: LaunchSpec, stored: bool) -> None:
    try:
        made = plan(asked, host=STORED if stored else HOST)
    except DisaggError:
        return
    names = made.process_names()
    assert len(set(names)) == len(names)
    state: dict[str, tuple[str, ...]] = {}
    for rank in made.ranks:
        ports: collections.Counter[int] = collections.Counter()
        gpus: collections.Counter[int] = collections.Counter()
        for process in rank.processes():
            state[process.name] = tuple(edge.process for edge in process.after)
            gpus.update(process.gpus)
            for name, first in process.ports.items():
                ports.update(range(first, first + process.port_counts.get(name, 1)))
            flags = [word for word in process.argv if word.startswith("--")]
            assert len(set(flags)) == len(flags)
        assert not [port for port, count in ports.items() if count > 1]
        assert all(0 < port < 65536 for port in ports)
        assert not [gpu for gpu, count in gpus.items() if count > 1]
        assert all(0 <= gpu < asked.gpus_per_node for gpu in gpus)
    assert {target for targets in state.values() for target in targets} <= set(state)
    while state:
        free = [name for name, targets in state.items() if not set(targets) & set(state)]
        assert free, f"circle among {sorted(state)}"
        for name in free:
            del state[name]
