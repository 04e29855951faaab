"""Typed model tables: what a row may say, where each value comes from, and errors with their line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.declarations import ModelRow
from disagg_run.errors import SpecError
from disagg_run.tables import read_model_table


@attrs.frozen(kw_only=True)
class Draft:
    method: Literal["fast", "slow"]
    layers: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class Body:
    batch: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    share: float | None = None
    eager: bool = False
    label: str = ""
    draft: Draft | None = None
    env: Mapping[str, str] = attrs.field(factory=dict)
    modes: Mapping[Literal["a", "b"], Draft] = attrs.field(factory=dict)
    raw: Any = None


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    return path


def rows(tmp_path: Path, text: str) -> tuple[ModelRow, ...]:
    return read_model_table(write(tmp_path, text), Body)


def one(tmp_path: Path, keys: str) -> Body:
    """The body of a table with one row of these keys, one a line."""
    body = rows(tmp_path, "models:\n  - name: m\n" + "".join(f"    {line}\n" for line in keys.splitlines()))[0].body
    assert isinstance(body, Body)
    return body


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(SpecError) as error:
        rows(tmp_path, text)
    return str(error.value)


FULL = """\
shared:
  family:
    batch: 16
    env: {ONE: 1, TWO: "2"}
    draft: {method: fast, layers: [1, 2]}
  wide:
    extends: family
    env:
      TWO: two
models:
  - name: first
    versions: ">=1.2"
    tp: {prefill: 4}
    extends: wide
    share: 1
    env:
      ONE: null
      FIVE: 0.50
  - name: second
    extends: [wide, family]
    draft: null
  - name: third
"""


def test_rows_lie_over_the_blocks_that_they_extend(tmp_path: Path) -> None:
    first, second, third = rows(tmp_path, FULL)
    assert (first.name, first.versions, dict(first.tp)) == ("first", ">=1.2", {"prefill": 4})
    assert first.body == Body(
        batch=16, share=1.0, draft=Draft(method="fast", layers=(1, 2)), env={"TWO": "two", "FIVE": "0.50"}
    )
    assert second.body == Body(batch=16, env={"ONE": "1", "TWO": "2"})
    assert third.body == Body()
    assert third.versions == ""


def test_every_path_of_a_row_has_its_line_also_in_a_block(tmp_path: Path) -> None:
    first, second, _ = rows(tmp_path, FULL)
    assert first.places[""] == "models.yaml:11"
    assert first.places["batch"] == "models.yaml:3"
    assert first.places["draft.layers"] == "models.yaml:5"
    assert first.places["env.TWO"] == "models.yaml:9"
    assert first.places["env.FIVE"] == "models.yaml:18"
    assert first.places["tp.prefill"] == "models.yaml:13"
    assert "env.ONE" not in first.places
    assert second.places["env.TWO"] == "models.yaml:4"
    assert not [path for path in second.places if path.startswith("draft")]


def test_text_fields_take_scalars_as_they_are_written(tmp_path: Path) -> None:
    body = one(tmp_path, "label: 0x10\nenv: {A: 0, B: 1.10, C: true, D: 'x y', E: ''}")
    assert body.label == "0x10"
    assert dict(body.env) == {"A": "0", "B": "1.10", "C": "true", "D": "x y", "E": ""}


def test_free_data_stays_plain(tmp_path: Path) -> None:
    assert json.dumps(one(tmp_path, "raw: {a: [1, {b: c}]}").raw) == '{"a": [1, {"b": "c"}]}'


def test_yaml_anchors_and_merge_keys_work_and_keep_their_lines(tmp_path: Path) -> None:
    row = rows(
        tmp_path,
        "shared:\n  x: &x\n    method: slow\n"
        "models:\n  - name: m\n    draft: *x\n    modes: {a: {<<: *x, layers: [3]}}\n",
    )[0]
    assert row.body.draft == Draft(method="slow")
    assert row.body.modes["a"] == Draft(method="slow", layers=(3,))
    assert row.places["draft.method"] == "models.yaml:3"
    assert row.places["modes.a.method"] == "models.yaml:3"


def test_one_model_may_have_rows_for_several_versions(tmp_path: Path) -> None:
    found = rows(tmp_path, 'models:\n- {name: m, versions: "<2"}\n- {name: m, versions: ">=2"}\n')
    assert [row.versions for row in found] == ["<2", ">=2"]


BAD = {
    "top key": ("modles: []\n", "models.yaml:1: unknown key 'modles': did you mean 'models'?"),
    "no rows": ("models: []\n", "models.yaml:1: 'models' must be a list of rows"),
    "no mapping": ("models: [a]\n", "models.yaml:1: models.0 must be a mapping, not 'a'"),
    "empty": ("", "models.yaml:1: the table must be a mapping, not None"),
    "no name": ("models:\n  - batch: 1\n", "models.yaml:2: this row has no 'name'"),
    "row key": ("models:\n  - name: m\n    bacth: 1\n", "models.yaml:3: unknown key 'bacth': did you mean 'batch'?"),
    "nested key": (
        "models:\n  - name: m\n    draft:\n      method: fast\n      layer: [1]\n",
        "models.yaml:5: unknown key 'layer' of 'draft': did you mean 'layers'?",
    ),
    "doubled row": (
        "models:\n  - name: m\n  - name: m\n",
        "models.yaml:3: the model 'm' stands already at models.yaml:2: give the two rows different versions",
    ),
    "doubled key": (
        "models:\n  - name: m\n    batch: 1\n    batch: 2\n",
        "models.yaml:4: the key 'batch' stands already",
    ),
    "missing": ("models:\n  - name: m\n    draft: {}\n", "models.yaml:3: 'draft.method' is missing"),
    "choice": (
        "models:\n  - name: m\n    draft: {method: fasd}\n",
        "models.yaml:3: unknown value 'fasd' of 'draft.method': did you mean 'fast'?",
    ),
    "map key": (
        "models:\n  - name: m\n    modes:\n      c: {method: fast}\n",
        "models.yaml:4: unknown key 'c' of 'modes': known are a, b",
    ),
    "number": ("models:\n  - name: m\n    batch: many\n", "models.yaml:3: 'batch' must be a whole number, not 'many'"),
    "fraction": ("models:\n  - name: m\n    batch: 1.5\n", "models.yaml:3: 'batch' must be a whole number, not 1.5"),
    "yes": ("models:\n  - name: m\n    batch: true\n", "models.yaml:3: 'batch' must be a whole number, not True"),
    "switch": ("models:\n  - name: m\n    eager: 1\n", "models.yaml:3: 'eager' must be true or false, not 1"),
    "text": ("models:\n  - name: m\n    label: [a]\n", "models.yaml:3: 'label' must be text, not ['a']"),
    "list": (
        "models:\n  - name: m\n    draft: {method: fast, layers: 3}\n",
        "models.yaml:3: 'draft.layers' must be a list, not 3",
    ),
    "list item": (
        "models:\n  - name: m\n    draft:\n      method: fast\n      layers:\n        - 1\n        - x\n",
        "models.yaml:7: 'draft.layers.1' must be a whole number, not 'x'",
    ),
    "mapping": ("models:\n  - name: m\n    env: x\n", "models.yaml:3: 'env' must be a mapping, not 'x'"),
    "tp role": (
        "models:\n  - name: m\n    tp: {prefil: 4}\n",
        "models.yaml:3: unknown key 'prefil' of 'tp': did you mean 'prefill'?",
    ),
    "tp size": ("models:\n  - name: m\n    tp: {decode: 0}\n", "models.yaml:3: 'tp.decode' is 0, but a worker has"),
    "validator": ("models:\n  - name: m\n    batch: 0\n", "models.yaml:2: 'batch' must be >= 1: 0"),
    "block": (
        "shared: {famliy: {}}\nmodels:\n  - name: m\n    extends: family\n",
        "models.yaml:4: unknown shared block 'family': did you mean 'famliy'?",
    ),
    "block name": ("models:\n  - name: m\n    extends: [3]\n", "models.yaml:3: 'extends' names shared blocks, not 3"),
    "in a block": (
        "shared:\n  x:\n    batch: y\nmodels:\n  - name: m\n    extends: x\n",
        "models.yaml:3: 'batch' must be a whole number, not 'y'",
    ),
    "circle": (
        "shared:\n  x: {extends: y}\n  y: {extends: x}\nmodels:\n  - name: m\n    extends: x\n",
        "models.yaml:3: shared blocks extend each other in a circle: x -> y -> x",
    ),
    "yaml": ("models: [\n", "models.yaml:2: not valid YAML"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_said_in_one_line_with_its_place(what: str, tmp_path: Path) -> None:
    text, message = BAD[what]
    said = refused(tmp_path, text)
    assert said.startswith(message)
    assert "\n" not in said


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the model table '.*none\.yaml' cannot be read"):
        read_model_table(tmp_path / "none.yaml", Body)


_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["x", "m", "fast"])
_KEYS = st.sampled_from(
    [
        "name",
        "extends",
        "versions",
        "tp",
        "batch",
        "share",
        "draft",
        "method",
        "layers",
        "env",
        "modes",
        "a",
        "raw",
        "x",
    ]
)
_DATA = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)


@given(models=st.lists(st.dictionaries(_KEYS, _DATA, max_size=5), max_size=3) | _DATA, shared=_DATA)
def test_any_table_gives_typed_rows_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, models: Any, shared: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-models.yaml"
    path.write_text(json.dumps({"models": models, "shared": shared}))
    found: tuple[ModelRow, ...] = ()
    said = "any-models.yaml:"
    try:
        found = read_model_table(path, Body)
    except SpecError as error:
        said = str(error)
    assert said.startswith("any-models.yaml:")
    for row in found:
        assert isinstance(row.body, Body)
        assert isinstance(row.body.batch, int)
        assert all(isinstance(value, str) for value in row.body.env.values())


def test_reading_tables_imports_nothing_heavy() -> None:
    code = "import sys, disagg_run.tables; sys.exit(bool({'cattrs', 'cattr', 'structlog', 'httpx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
