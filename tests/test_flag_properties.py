"""Flags against real parsers: whatever is merged, an argparse parser built from the catalogue's JSON reads it back.

The parsers are built from the documents (``catalogue_parsers``), without ``disagg_run``'s own reading of them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import DisaggError
from disagg_run.flags import MergedFlag, check_flags, merge_flags, render, split_words
from disagg_run.records import Flag
from disagg_run.sources import Layer, Source
from tests.catalogue_parsers import (
    CATALOGUES,
    DOCUMENTS,
    PARSERS,
    TOY,
    option_names,
    shipped,
)

# --- what may be given to a flag ---------------------------------------------------------------------------------

#: Any text that a process can be given; a lone "--" is refused elsewhere.
texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8) | st.sampled_from(
    ["-1", "--size", "-s", "", "-", "a=b", "--x=y", "- -", '{"a": 1', "$HOME `x` ' \"", "\n", "é", "-x y", "--no-both"]
)
words = texts.filter(lambda text: text != "--")
plain_words = texts.filter(lambda text: not text.startswith("-")) | st.sampled_from(["-1", "-2.5", "-"])
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
json_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(st.sampled_from(["a", "b", "a.b", "", "é"]), json_values, max_size=4)
scalars: dict[Any, st.SearchStrategy[str]] = {
    "int": st.integers(-99, 99).map(str),
    "float": st.floats(allow_nan=False).map(str),
    "size": st.integers(0, 99).map(str) | st.just("8k"),
    "json": json_values.map(json.dumps),
    "json_object": json_objects.map(json.dumps),
    "json_or_text": json_objects.map(json.dumps) | words.filter(lambda text: not text.lstrip().startswith("{")),
}


def values_of(flag: Mapping[str, Any]) -> st.SearchStrategy[tuple[str, ...]]:
    arity = flag["arity"]
    least, most = {"?": (0, 1), "*": (0, 3), "+": (1, 3), "1-2": (1, 2)}.get(arity, (arity, arity))
    single = st.sampled_from(flag["choices"]) if "choices" in flag else scalars.get(flag.get("kind"), words)
    if (least, most) == (1, 1):
        return st.tuples(single)
    several = single.filter(lambda text: not text.startswith("-")) if "choices" in flag else plain_words
    if flag.get("kind") in ("int", "float", "size"):
        several = st.integers(-9, 9).map(str)
    longer = st.lists(several, min_size=max(least, 2), max_size=max(most, 2)).map(tuple) if most > 1 else st.nothing()
    return (
        longer
        | (st.tuples(single) if least <= 1 <= most else st.nothing())
        | (st.just(()) if least == 0 else st.nothing())
    )


@st.composite
def given_flags(draw: st.DrawFn, document: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Flag]]:
    """Flags in any order and of any layer, in which no plugin of one layer contradicts another."""
    records = [flag for flag in document["flags"] if flag["names"]]
    found = []
    taken = set()
    for record in draw(st.lists(st.sampled_from(records), max_size=12)):
        layer = draw(st.sampled_from(Layer))
        by_plugin = Layer.ENGINE <= layer <= Layer.SITE
        if by_plugin and (record["names"][0], layer) in taken:
            continue
        taken.add((record["names"][0], layer))
        names = option_names(record)
        if record.get("negatable"):
            names += ["--no-" + name[2:] for name in names if name.startswith("--")]
            names = [name for name in names if name in CATALOGUES_BY_ID[id(document)].names()]
        source = Source(layer=layer, plugin="toy" if by_plugin else None)
        found.append((record, Flag(draw(st.sampled_from(names)), draw(values_of(record)), source=source)))
    return found


CATALOGUES_BY_ID = {id(document): CATALOGUES[name] for name, document in DOCUMENTS.items()}


def parsed(name: str, argv: Sequence[str]) -> dict[str, Any]:
    # The parser's options come after its positional word, as engines' commands have it.
    first = ["the-model"] if any(not flag["names"] for flag in DOCUMENTS[name]["flags"]) else []
    return vars(PARSERS[name].parse_args([*first, *argv]))


def expected(flags: Sequence[tuple[Mapping[str, Any], Flag]]) -> dict[str, Any]:
    """What the parser must find for scalar flags: the last one of the highest layer, all of a repeatable flag."""
    ranked = sorted(flags, key=lambda pair: pair[1].source.layer if pair[1].source else 0)
    found: dict[str, Any] = {}
    for record, flag in ranked:
        dest = option_names(record)[0]
        if not record.get("repeatable"):
            found[dest] = as_parsed(record, flag)
    for record, flag in flags:
        if record.get("repeatable"):
            found.setdefault(option_names(record)[0], []).append(as_parsed(record, flag))
    return found


def as_parsed(record: Mapping[str, Any], flag: Flag) -> Any:
    kinds: dict[str, Any] = {"int": int, "float": float, "json": json.loads, "json_object": json.loads}
    values = [kinds.get(str(record.get("kind")), str)(value) for value in flag.values]
    if record["arity"] == 0:
        return not flag.name.startswith("--no-")
    if record["arity"] == 1:
        return values[0]
    if record["arity"] == "?":
        return values[0] if values else None
    return values


def is_object(record: Mapping[str, Any], flag: Flag) -> bool:
    return record.get("kind") in ("json", "json_object", "json_or_text") and flag.values[0].startswith("{")


def merged_of(name: str, flags: Sequence[tuple[Mapping[str, Any], Flag]]) -> tuple[MergedFlag, ...]:
    return merge_flags([flag for _, flag in flags], CATALOGUES[name], where="decode-0")


def assert_read_back(name: str, flags: Sequence[tuple[Mapping[str, Any], Flag]]) -> None:
    merged = merged_of(name, flags)
    argv = render(merged)
    found = parsed(name, argv)
    objects = {option_names(record)[0] for record, flag in flags if flag.values and is_object(record, flag)}
    for dest, value in expected(flags).items():
        if dest not in objects:
            assert found[dest] == value, (dest, argv)
    repeatable = {name for record in DOCUMENTS[name]["flags"] if record.get("repeatable") for name in record["names"]}
    once = [CATALOGUES[name].lookup(flag.name) for flag in merged if flag.name not in repeatable]
    assert len(set(once)) == len(once)
    again = merge_flags(split_words(argv, CATALOGUES[name], Source(layer=Layer.CORE)), CATALOGUES[name], where="x")
    assert [(flag.name, flag.values, flag.json) for flag in again] == [
        (flag.name, flag.values, flag.json) for flag in merged
    ]


@given(given_flags(TOY))
def test_whatever_is_merged_a_real_parser_reads_the_winners_back(flags: list[tuple[Mapping[str, Any], Flag]]) -> None:
    assert_read_back("toy", flags)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_flag_of_every_shipped_catalogue_is_read_back(name: str) -> None:
    """Each flag once, with a value that its record allows."""
    flags = []
    samples = {"int": "-7", "float": "-0.5", "size": "8", "json": '{"a":[1]}', "json_object": '{"a":{"b":"-"}}'}
    for record in DOCUMENTS[name]["flags"]:
        if not record["names"]:
            continue
        sample = record["choices"][0] if "choices" in record else samples.get(str(record.get("kind")), "-x y")
        count = {"?": 1, "*": 1, "+": 1, "1-2": 1}.get(record["arity"], record["arity"])
        flags.append((record, Flag(option_names(record)[-1], (sample,) * count, source=Source(layer=Layer.CORE))))
    assert_read_back(name, flags)
    warnings = check_flags(merged_of(name, flags), CATALOGUES[name], exact=True, gone=(), version="1", where="decode-0")
    assert len(warnings) == sum("deprecated" in record for record in DOCUMENTS[name]["flags"])


@given(st.data())
def test_flags_of_a_shipped_catalogue_are_read_back(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(shipped_names)))
    assert_read_back(name, data.draw(given_flags(DOCUMENTS[name])))


shipped_names = [name for name in DOCUMENTS if name != "toy"]


def overlaid(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: overlaid(below.get(key), value) for key, value in above.items()}}
    return above


@given(st.lists(st.tuples(st.sampled_from(Layer), json_objects, st.booleans()), min_size=1, max_size=5))
def test_objects_are_overlaid_by_layer_and_written_once(
    given_objects: list[tuple[Layer, dict[str, Any], bool]],
) -> None:
    flags = []
    for layer, value, as_text in given_objects:
        source = Source(layer=layer)
        text = json.dumps(value, indent=1 if len(value) == 1 else None)
        flags.append(
            Flag("--object", (text,), source=source) if as_text else Flag("--object", json=value, source=source)
        )
    argv = render(merge_flags(flags, CATALOGUES["toy"], where="decode-0"))
    wanted: Any = {}
    for _, value, _ in sorted(given_objects, key=lambda each: each[0]):
        wanted = overlaid(wanted, value)
    assert argv[0] == "--object"
    assert json.loads(argv[1]) == wanted
    assert parsed("toy", argv)["--object"] == wanted


@given(st.lists(words | st.sampled_from(["--size", "--conf", "--object", "--on", "--some", "-tp", "--object.a", "--"])))
def test_any_words_become_flags_that_lose_nothing_or_one_clear_error(typed: list[str]) -> None:
    source = Source(layer=Layer.COMMAND_LINE, where="--args")
    try:
        flags = split_words(typed, CATALOGUES["toy"], source)
        render(merge_flags(flags, CATALOGUES["toy"], where="decode-0"))
    except DisaggError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
    if not message and not any("." in word for word in typed):
        kept = [word for flag in flags for word in (flag.name, *flag.values)]
        assert "".join(kept).replace("=", "") == "".join(typed).replace("=", "")


@given(st.lists(words, min_size=1, max_size=3), st.sampled_from(["--text", "-tp", "--unknown"]))
def test_text_from_a_table_survives_the_shells_quoting(values: list[str], name: str) -> None:
    value = "".join(values)
    split = split_words(shlex.split(f"{name}={shlex.quote(value)}"), CATALOGUES["toy"], Source(layer=Layer.MODEL))
    assert [(flag.name, flag.values) for flag in split] == [(name, (value,))]
