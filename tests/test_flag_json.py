"""Flags whose value is a JSON object: merged by key, written once."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from disagg_run.errors import ConflictError, FlagError
from disagg_run.flags import render
from disagg_run.records import Flag, flag
from disagg_run.sources import Source
from tests.toy_flags import CONNECTOR, CONTRACT, ENGINE, OTHER_SITE, SITE, TYPED, argv_of, merged_of


def kv(source: Source, **keys: Any) -> Flag:
    return flag("--kv-config", keys, source=source)


def test_json_objects_merge_by_key_with_a_source_for_each_leaf() -> None:
    (merged,) = merged_of(
        kv(CONNECTOR, role="producer", extra={"port": 6301, "nics": ["a"]}),
        kv(SITE, extra={"tc": 96}),
        flag("-kv", '{"extra": {"port": 7000}, "role": "consumer"}', source=TYPED),
    )
    assert merged.json == {"role": "consumer", "extra": {"port": 7000, "nics": ["a"], "tc": 96}}
    assert merged.leaf_sources == {
        "role": TYPED,
        "extra.port": TYPED,
        "extra.nics": CONNECTOR,
        "extra.tc": SITE,
    }
    assert merged.source == TYPED
    assert set(merged.replaced) == {(CONNECTOR, 'role="producer"'), (CONNECTOR, "extra.port=6301")}
    assert render([merged]) == ("-kv", '{"role":"consumer","extra":{"port":7000,"nics":["a"],"tc":96}}')


def test_a_leaf_may_have_a_source_of_its_own() -> None:
    given = attrs.evolve(kv(CONNECTOR, role="x", port=1), leaf_sources={"port": CONTRACT})
    (merged,) = merged_of(kv(SITE, port=2), given)
    assert merged.json == {"port": 1, "role": "x"}
    assert merged.leaf_sources == {"port": CONTRACT, "role": CONNECTOR}
    assert merged.replaced == ((SITE, "port=2"),)


def test_two_plugins_that_differ_in_a_leaf_are_an_error_naming_the_leaf() -> None:
    with pytest.raises(ConflictError, match=r"'site-a' and 'site-b' set --kv-config .*extra\.port=1 .*extra\.port=2"):
        merged_of(kv(SITE, extra={"port": 1, "a": 0}), kv(OTHER_SITE, extra={"port": 2, "b": 0}))


def test_a_number_and_a_truth_value_differ_although_python_holds_them_equal() -> None:
    with pytest.raises(ConflictError, match=r"read=1 .*read=true"):
        merged_of(kv(SITE, read=1), kv(OTHER_SITE, read=True))


def test_an_object_and_another_value_replace_each_other_as_a_whole() -> None:
    (merged,) = merged_of(kv(CONNECTOR, role="x"), typed=["--kv-config", "None"])
    assert (merged.json, merged.values, merged.replaced) == (None, ("None",), ((CONNECTOR, 'role="x"'),))
    (merged,) = merged_of(kv(ENGINE, extra=1), kv(CONNECTOR, extra={"a": 1}))
    assert (merged.json, merged.replaced) == ({"extra": {"a": 1}}, ((ENGINE, "extra=1"),))
    with pytest.raises(ConflictError, match=r"'site-a' and 'site-b'"):
        merged_of(kv(SITE, extra=1), kv(OTHER_SITE, extra={"a": 1}))


def test_an_object_for_a_flag_of_unknown_type_still_merges_with_typed_text() -> None:
    flags = [flag("--mystery", {"a": 1}, source=CONNECTOR)]
    assert argv_of(*flags, typed=["--mystery", '{"b": 2}']) == ("--mystery", '{"a":1,"b":2}')


def test_text_of_a_flag_that_takes_no_json_stays_as_typed() -> None:
    assert argv_of(typed=["--mystery", '{"b": 2}']) == ("--mystery", '{"b": 2}')


@pytest.mark.parametrize("given", [(), (kv(CONNECTOR, role="x"),)])
def test_broken_json_is_an_error_with_flag_source_and_position(given: tuple[Flag, ...]) -> None:
    with pytest.raises(FlagError) as caught:
        merged_of(*given, typed=["--kv-config", "{kv_role: kv_producer}"])
    message = str(caught.value)
    assert "--kv-config (command line --decode-args) is broken at column 2, near '{kv_role: kv_producer'" in message


def test_a_key_that_stands_twice_in_typed_json_is_an_error() -> None:
    with pytest.raises(FlagError, match=r"has the key 'a' twice"):
        merged_of(typed=["--kv-config", '{"x": {"a": 1, "a": 2}}'])


def test_a_plugins_object_that_is_no_json_is_an_error_naming_it() -> None:
    with pytest.raises(FlagError, match=r"--kv-config .*plugin toy-kv.* is no JSON"):
        merged_of(kv(CONNECTOR, role=object()))


def test_a_key_with_a_dot_stands_in_quotes_among_the_leaves() -> None:
    (merged,) = merged_of(kv(CONNECTOR, **{"a.b": {"c": 1}}))
    assert dict(merged.leaf_sources) == {'"a.b".c': CONNECTOR}


def test_R12_json_and_lists_keep_their_quotes() -> None:
    """JSON and list values lost their quotes on the way to the engine."""
    typed = ["--origins", '["*"]', "--kv-config", '{"k": "a \\"b\\" \\n \u00e9 $HOME"}', "--mystery", "[1,2]"]
    argv = argv_of(typed=typed)
    assert argv[:2] == ("--origins", '["*"]')
    assert json.loads(argv[3]) == {"k": 'a "b" \n \u00e9 $HOME'}
    assert argv[4:] == ("--mystery", "[1,2]")


def test_a_lone_surrogate_in_json_is_escaped_since_no_argv_could_carry_it() -> None:
    (_, text) = argv_of(typed=["--kv-config", '{"k": "\\ud800"}'])
    assert text.isascii()
    assert json.loads(text) == {"k": "\ud800"}
