"""The comparison itself: it must see what differs, and only that."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from disagg_run import LaunchPlan, PlannedProcess
from tests.parity import differences
from tests.parity.case import COMPARED, host, load, names
from tests.parity.commands import Names, read_command, read_names
from tests.parity.comparing import Difference, compare
from tests.parity.differences import Result, count_line

CASE = "atom/dsv4_2p1d_dpa_tp8"


def changed(plan: LaunchPlan, name: str, change: Callable[[PlannedProcess], PlannedProcess | None]) -> LaunchPlan:
    """The plan with one process replaced, or left out."""
    ranks = []
    for rank in plan.ranks:
        groups = []
        for group in rank.groups:
            processes = [change(each) if each.name == name else each for each in group.processes]
            groups.append(attrs.evolve(group, processes=[each for each in processes if each is not None]))
        ranks.append(attrs.evolve(rank, groups=groups))
    return attrs.evolve(plan, ranks=ranks)


def found(name: str, change: Callable[[PlannedProcess], PlannedProcess | None]) -> set[tuple[str, str, str]]:
    """What the comparison says of a changed process beyond what it says of the plan as it is."""
    case = load(CASE)
    plan = case.plan()
    known = compare(case, plan)
    new: list[Difference] = [each for each in compare(case, changed(plan, name, change)) if each not in known]
    return {(each.process, each.item, each.kind) for each in new}


def argv(old: str, *new: str) -> Callable[[PlannedProcess], PlannedProcess]:
    """Puts ``new`` words in place of one word of the argv."""

    def change(process: PlannedProcess) -> PlannedProcess:
        assert old in process.argv
        words = [each for word in process.argv for each in (new if word == old else (word,))]
        return attrs.evolve(process, argv=words)

    return change


def test_another_value_a_flag_too_many_and_one_too_few_are_seen() -> None:
    assert found("decode-0", argv("2048", "1024")) == {("decode-0", "flag --max-num-seqs", "differs")}
    extra = argv("--enable-tbo", "--enable-tbo", "--enforce-eager")
    assert found("prefill-1", extra) == {("prefill-1", "flag --enforce-eager", "added")}
    assert found("prefill-0", argv("--enable-tbo")) == {("prefill-0", "flag --enable-tbo", "absent")}


def test_a_negation_is_not_the_flag_itself() -> None:
    change = argv("--no-enable_prefix_caching", "--enable_prefix_caching")
    assert found("prefill-0", change) == {("prefill-0", "flag --enable_prefix_caching", "differs")}


def test_another_program_and_one_router_target_less_are_seen() -> None:
    assert found("decode-0", argv("python3", "python")) == {("decode-0", "program", "differs")}
    assert found("router", argv("http://10.0.0.2:8010", "http://10.0.0.2:8011")) == {
        ("router", "flag --prefill", "differs")
    }


def test_json_values_are_compared_by_content_and_key() -> None:
    def reordered(process: PlannedProcess) -> PlannedProcess:
        place = process.argv.index("--kv-transfer-config") + 1
        text = '{ "handshake_port":6301, "kv_connector":"mooncake","kv_role":"kv_producer", "proxy_ip":"10.9.9.9"}'
        return attrs.evolve(process, argv=[*process.argv[:place], text, *process.argv[place + 1 :]])

    assert found("prefill-0", reordered) == {("prefill-0", "flag --kv-transfer-config proxy_ip", "differs")}


def test_spelling_order_and_repetition_make_no_difference() -> None:
    def respelt(process: PlannedProcess) -> PlannedProcess:
        words = list(process.argv)
        words[words.index("-tp")] = "--tensor_parallel_size"
        words += ["--block-size=16", "--kv-cache-dtype", "bf16", "--kv_cache_dtype", "fp8"]
        return attrs.evolve(process, argv=words)

    assert found("prefill-0", respelt) == set()


def test_variables_that_miss_differ_or_are_added_are_seen() -> None:
    def without(process: PlannedProcess) -> PlannedProcess:
        env = {name: value for name, value in process.env.items() if name != "GPU_MAX_HW_QUEUES"}
        return attrs.evolve(process, env={**env, "LOGLEVEL": "INFO", "NEW": "1"})

    assert found("decode-0", without) == {
        ("decode-0", "env GPU_MAX_HW_QUEUES", "absent"),
        ("decode-0", "env LOGLEVEL", "differs"),
        ("decode-0", "env NEW", "added"),
    }
    unset = found("decode-0", lambda process: attrs.evolve(process, unset=["MODEL_NAME"]))
    assert unset == {("decode-0", "env MODEL_NAME", "added")}


def test_a_variable_that_is_inherited_with_the_same_value_is_no_difference() -> None:
    def said_again(process: PlannedProcess) -> PlannedProcess:
        return attrs.evolve(process, env={**process.env, "TQDM_MININTERVAL": "20"})

    assert found("prefill-0", said_again) == set()


def test_path_variables_are_compared_by_element() -> None:
    def shorter(process: PlannedProcess) -> PlannedProcess:
        return attrs.evolve(process, env_prepend={"LD_LIBRARY_PATH": process.env_prepend["LD_LIBRARY_PATH"][:1]})

    assert found("prefill-0", shorter) == {("prefill-0", "env LD_LIBRARY_PATH", "differs")}


def test_a_process_too_few_and_one_too_many_are_seen() -> None:
    assert found("router", lambda process: None) == {("router", "process", "absent")}
    other = found("decode-0", lambda process: attrs.evolve(process, kind="service", role=None, name="store"))
    assert other == {("decode", "process", "absent"), ("store", "process", "added")}


@pytest.mark.parametrize("word", ["--prefill", "--decode"])
def test_flags_that_may_repeat_count_each_time(word: str) -> None:
    refs = host().engine("atom-disagg").catalogues
    known = read_names(next(ref.file for ref in refs if ref.program == "router"))
    assert read_command(["atomesh", word, "a", word, "b", "--port", "1", "--port", "2"], known) == {
        "program": ("atomesh",),
        word: ("a", "b"),
        "--port": "2",
    }


def test_negative_numbers_and_single_dashes_are_values() -> None:
    command = read_command(["p", "serve", "--a", "-1", "--b", "-", "--c"], Names({}, frozenset()))
    assert command == {"program": ("p", "serve"), "--a": "-1", "--b": "-", "--c": True}


def test_the_count_tells_how_many_cases_are_equal_and_which_numbers_the_others_carry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = count_line([CASE])
    assert line.startswith(
        f"1 of {len(names(*COMPARED))} cases compared: 0 equal, 1 with numbered differences (A1 in 1"
    )
    plain = {CASE: Result(unexplained=(), explained=())}
    monkeypatch.setattr(differences, "result", plain.__getitem__)
    assert "cases compared: 1 equal, 0 with numbered differences (none)" in count_line([CASE])
