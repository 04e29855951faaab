"""Strict YAML: lines for every value, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import SpecError
from disagg_run.yamlfile import read_yaml

RECIPE = """\
# a comment
engine: toy-disagg
prefill:
  workers: 2
  args: [--seed, 7]
models:
  - name: Toy-K2.5
    tp: {prefill: 8}
version: 0.10
"""


def test_values_are_plain_data_with_their_lines() -> None:
    document = read_yaml(RECIPE, "r.yaml")
    assert document.value["prefill"] == {"workers": 2, "args": ["--seed", 7]}
    assert document.line(("prefill", "workers")) == 4
    assert document.place("prefill.args.1") == "r.yaml:5"
    assert document.place("models.0.tp.prefill") == "r.yaml:8"
    assert document.place(("models", 0, "name")) == "r.yaml:7"


def test_a_missing_path_has_the_place_of_what_would_hold_it() -> None:
    document = read_yaml(RECIPE, "r.yaml")
    assert document.place("prefill.tp.deeper") == "r.yaml:3"
    assert document.line(("prefill", "tp")) == 3
    assert document.place("nothing") == "r.yaml:2"


def test_a_scalar_can_be_read_as_it_is_written() -> None:
    document = read_yaml(RECIPE, "r.yaml")
    assert document.value["version"] == 0.1
    assert document.text(("version",)) == "0.10"
    assert document.text(("prefill",)) is None


def test_times_and_colon_numbers_stay_text() -> None:
    document = read_yaml("a: 2024-01-31\nb: 1:30\nc: 10:20.5\nd: 1e3\ne: .inf\n", "r.yaml")
    assert document.value == {"a": "2024-01-31", "b": "1:30", "c": "10:20.5", "d": "1e3", "e": float("inf")}


def test_an_empty_document_is_none() -> None:
    assert read_yaml("# nothing\n", "r.yaml").value is None


def test_aliases_and_merge_keys_are_written_out_with_their_lines() -> None:
    document = read_yaml("x: &x\n  a: 1\n  b: 2\ny:\n  <<: *x\n  b: 3\nz: *x\n", "r.yaml")
    assert document.value["y"] == {"b": 3, "a": 1}
    assert document.value["z"] == {"a": 1, "b": 2}
    assert document.place("y.a") == "r.yaml:2"
    assert document.place("y.b") == "r.yaml:6"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "r.yaml:3: the key 'a' stands already at r.yaml:1"),
        ("a:\n  b: 1\n  'b': 2\n", "r.yaml:3: the key 'b' stands already at r.yaml:2"),
        ("a: 1\nb: [1\n", "r.yaml:3: not valid YAML: "),
        ("a: b: c\n", "r.yaml:1: not valid YAML: mapping values are not allowed"),
        ("a: 1\n\tb: 2\n", "r.yaml:2: not valid YAML: "),
        ("a: 1\nb: *missing\n", "r.yaml:2: not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2: not valid YAML: but found another document"),
        ("a: 1\nb: \x01\n", "r.yaml:2: not valid YAML: character '\\x01' is not allowed"),
        ("a: 1\nb: \ud800\n", "r.yaml:2: not valid YAML: "),
        ("a: 1\n8: x\n", "r.yaml:2: the key '8' is no text: put it in quotes"),
        ("on: x\n", "r.yaml:1: the key 'on' is no text"),
        ("? [a, b]\n: 1\n", "r.yaml:1: a key must be text"),
        ("a: !!python/object:os.system x\n", "r.yaml:1: the tag '!!python/object:os.system' is not known here"),
        ("a: !include x.yaml\n", "r.yaml:1: the tag '!include' is not known here"),
        ("a: &a [*a]\n", "r.yaml:1: nested deeper than"),
        ("a: &a\n  <<: *a\n", "r.yaml:1: nested deeper than"),
        ("a:\n  <<: 3\n", "r.yaml:2: '<<' takes a mapping"),
        ("a: " + "[" * 5000, "r.yaml:1: not valid YAML: "),
        ("a: " + "[" * 60 + "]" * 60, "r.yaml:1: nested deeper than"),
        ("a: !!int eight\n", "r.yaml:1: 'eight' is no int"),
        ("a: !!bool maybe\n", "r.yaml:1: 'maybe' is no bool"),
        ("a: " + "9" * 5000 + "\n", "r.yaml:1: '9999"),
    ],
)
def test_a_fault_names_file_and_line(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_yaml(text, "r.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_of_aliases_cannot_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(SpecError, match=r"r\.yaml:\d+: more than \d+ values"):
        read_yaml("\n".join(lines), "r.yaml")


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cn", "Cs"]))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc-_.:# ", min_size=1), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_what_json_writes_reads_back_the_same(value: Any) -> None:
    assert read_yaml(json.dumps(value, ensure_ascii=False), "r.yaml").value == value


@given(st.text(max_size=60) | st.text("ab:-[]{}&*!<?'\"|>%@\n #,1", max_size=60))
def test_any_text_gives_data_or_one_line_with_its_place(text: str) -> None:
    try:
        problem = ""
        read_yaml(text, "r.yaml")
    except SpecError as error:
        problem = str(error)
    assert not problem or problem.startswith("r.yaml:")
    assert "\n" not in problem
