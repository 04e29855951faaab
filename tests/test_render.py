"""Plans as table, JSON and YAML."""

from __future__ import annotations

import json

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from disagg_run.planning.document import After, Group, LaunchPlan, Ready
from disagg_run.records import Preflight
from disagg_run.render import render_json, render_table, render_yaml
from tests.planned import TWO_RANKS, launch, process

# --- table ------------------------------------------------------------------------------------------------------------


def test_the_table_shows_what_each_rank_runs() -> None:
    digest = TWO_RANKS.digest
    assert render_table(TWO_RANKS) == (
        f"""\
engine  toy-disagg 1.0, connector toy-link
model   toy-7b at /models/toy-7b, served as toy
plan    2 ranks, unbound: made without node names, cannot be run
digest  {digest}

rank 0  n0  192.0.2.1
  container toy:1.0
    prefill-0  server  gpus 0-7
      ports      http 8010, handshake 6301-6308
      ready      http http://192.0.2.1:8010/health within 1800 s
      command    toy-server --config '{{"a": [1, 2]}}' --name 'two words'
      variables  2 set, 1 extended, 1 unset, secret: TOY_TOKEN
    patch      toy-fix (not needed)
    preflight  model
  router  router
    after    prefill-0, decode-0 ready
    command  toy-router

rank 1  n1  192.0.2.2
  decode-0  server  gpus 0,1,4
    ports    http 8020
    command  toy-server

ports
  rank  process    listener   ports
  0     prefill-0  http       8010
  0     prefill-0  handshake  6301-6308
  1     decode-0   http       8020

warnings
  - port 8010 is odd (plugin toy-disagg)

waived
  - block-size differs
"""
    )


def test_checks_of_one_name_are_shown_once_with_what_each_looks_at() -> None:
    checks = [
        Preflight(name="model", kind="path_exists", target="/m"),
        Preflight(name="driver", kind="device_present", target="/dev/a"),
        Preflight(name="driver", kind="output_matches", argv=("ls", "/b"), pattern="x"),
    ]
    assert Group(preflight=checks, processes=[]).checks_text() == "model, driver (/dev/a, ls /b)"


def test_the_table_keeps_one_line_for_one_value_and_cuts_long_commands() -> None:
    text = render_table(
        launch(
            [
                process(
                    argv=["toy", "line\none\x1b[31m", *["word"] * 100],
                    exec=["@python", "-m", "stand_in"],
                    ready=[Ready(kind="exit", target="", timeout_s=2.5)],
                    after=[After(process=f"p{index}", until="started") for index in range(10)],
                )
            ],
            simulated=True,
        )
    )
    assert "\x1b" not in text
    assert "command   toy 'line\\none\\x1b[31m' word" in text
    assert "stand-in  @python -m stand_in" in text
    assert "ready     ends with 0 within 2.5 s" in text
    assert "after     p0, p1, p2, p3, p4, p5, p6, p7 and 2 more started" in text
    assert max(map(len, text.splitlines())) < 140
    assert "simulated: the engines' stand-ins are started" in text


# --- JSON and YAML ----------------------------------------------------------------------------------------------------


any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def test_json_is_the_document_and_reads_back() -> None:
    assert LaunchPlan.from_json(render_json(TWO_RANKS)) == TWO_RANKS
    assert json.loads(render_json(TWO_RANKS, indent=2)) == TWO_RANKS.to_dict()


@given(st.lists(any_text, min_size=1, max_size=4), st.dictionaries(any_text, any_text, max_size=3))
@example(["1e3", "0o17", "y", "on", "null", "~", "01", "1:30", "-", "- a", "a: b", "#", " x ", "\x85", "é", "🙂"], {})
def test_yaml_reads_back_as_the_same_data(argv: list[str], env: dict[str, str]) -> None:
    plan = launch([process(argv=argv, env=env)])
    text = render_yaml(plan)
    assert yaml.safe_load(text) == plan.to_dict()
    assert list(yaml.safe_load(text)) == list(plan.to_dict())


def test_yaml_is_in_blocks_without_references_and_quotes_what_other_readers_may_take_for_numbers() -> None:
    text = render_yaml(
        launch([process(argv=["toy", "1e3", "y"], env={"A": "0x10"}), process("router", ["toy", "1e3"])])
    )
    assert text.startswith("schema: 1\ndigest: sha256:")
    assert "- '1e3'\n" in text
    assert "- 'y'\n" in text
    assert "A: '0x10'" in text
    assert "&" not in text
    assert "{}" not in text.replace("env: {}", "").replace("ports: {}", "")
