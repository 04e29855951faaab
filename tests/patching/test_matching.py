"""Where an edit finds its place: by text, by statements, within a scope, exactly once."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.patching.matching import NoMatch, SourceText, locate, replacement_text
from disagg_run.records import Edit

TWICE = """\
class A:
    def f(self):
        x = 1
        if x:
            x = 2
        elif y:
            x = 3

    def g(self):
        x = 1


def f():
    x = 1
"""


def place(text: str, edit: Edit) -> str:
    """The text that an edit would replace."""
    found = locate(SourceText(text), edit)
    assert not found.present
    return text[found.place.start : found.place.end]


def result(text: str, edit: Edit) -> str:
    """The text after the edit."""
    where = locate(SourceText(text), edit).place
    return text[: where.start] + replacement_text(edit, where) + text[where.end :]


def test_the_same_text_outside_the_scope_does_not_count() -> None:
    edit = Edit(anchor="        x = 1\n", replacement="", scope="A.g")
    assert locate(SourceText(TWICE), edit).place.start > TWICE.index("def g")


def test_a_method_and_a_function_of_one_name_are_two_scopes() -> None:
    assert place(TWICE, Edit(anchor="    x = 1\n", replacement="", scope="f")) == "    x = 1\n"
    assert place(TWICE, Edit(anchor="x = 1", replacement="", scope="A.f", by="statements")) == "        x = 1\n"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Edit(anchor="x = 1", replacement=""), "'x = 1' … stands 3 times in the file"),
        (Edit(anchor="x = 7", replacement="", scope="A.f"), "'x = 7' … does not stand in A.f"),
        (Edit(anchor="x = 1", replacement="", scope="A.h"), "A.h is not there"),
        (Edit(anchor="x = 1", replacement="", by="statements"), "stands 3 times in the file"),
        (Edit(anchor="if y:\n    x = 3", replacement="", scope="A.f", by="statements"), "does not stand in A.f"),
    ],
)
def test_an_anchor_that_is_not_there_exactly_once_is_refused_with_the_reason(edit: Edit, says: str) -> None:
    with pytest.raises(NoMatch) as refusal:
        locate(SourceText(TWICE), edit)
    assert says in str(refusal.value)


def test_a_scope_that_is_defined_twice_is_refused() -> None:
    text = "if a:\n    def f():\n        x = 1\nelse:\n    def f():\n        x = 2\n"
    with pytest.raises(NoMatch, match=r"^f is defined 2 times$"):
        locate(SourceText(text), Edit(anchor="x = 1", replacement="", scope="f"))


def test_an_anchor_that_overlaps_itself_is_found_twice() -> None:
    with pytest.raises(NoMatch, match="stands 2 times"):
        locate(SourceText("aXaXa"), Edit(anchor="aXa", replacement="b"))


def test_statements_match_whatever_their_layout_and_comments() -> None:
    text = "def f(a):\n    # before\n    g(a,\n      1)  # why\n    return (\n        a  # it\n    )\n"
    edit = Edit(anchor="g(a, 1)\nreturn a", replacement="return 2", scope="f", by="statements")
    assert result(text, edit) == "def f(a):\n    # before\n    return 2\n"


def test_a_replacement_takes_the_indentation_of_what_it_replaces() -> None:
    edit = Edit(anchor="x = 2", replacement="if z:\n    x = 4\n", scope="A.f", by="statements")
    assert "        if x:\n            if z:\n                x = 4\n        elif y:\n" in result(TWICE, edit)


def test_statements_that_share_a_line_with_others_do_not_match() -> None:
    with pytest.raises(NoMatch):
        locate(SourceText("a = 1; b = 2\n"), Edit(anchor="a = 1", replacement="a = 3", by="statements"))


def test_an_edit_that_stands_already_is_recognised_though_its_anchor_is_still_there() -> None:
    edit = Edit(anchor="import os\n", replacement="import os\nimport time\n")
    assert locate(SourceText("import os\nimport time\n"), edit).present
    assert not locate(SourceText("import os\nx = 1\n"), edit).present


def test_a_file_that_this_python_cannot_parse_is_refused_with_the_reason() -> None:
    with pytest.raises(NoMatch, match="cannot parse the file"):
        locate(SourceText("def f(:\n"), Edit(anchor="x", replacement="y", scope="f"))


def test_text_is_found_by_characters_beyond_ascii_too() -> None:
    text = 'def f():\n    s = "größe – 𝄞"\n    x = 1\n'
    assert place(text, Edit(anchor="x = 1", replacement="", scope="f", by="statements")) == "    x = 1\n"


STATEMENTS = ["x = 1", "y(2)", "if a:\n    b()\nelse:\n    c()", "for i in z:\n    d(i)", "return x", "s = 'q'"]


@given(st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=6), st.data())
def test_what_matching_replaces_is_the_anchor_and_nothing_else(block: list[str], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(block) - 1))
    last = data.draw(st.integers(first, len(block) - 1))
    gaps = data.draw(st.lists(st.sampled_from(["", "# note\n", "\n\n"]), min_size=len(block), max_size=len(block)))
    body = "".join(gap + statement + "\n" for gap, statement in zip(gaps, block, strict=True))
    text = "def f():\n" + "".join(f"    {line}\n" if line else "\n" for line in body.split("\n")[:-1])
    ast.parse(text)
    anchor = "\n".join(block[first : last + 1])
    edit = Edit(anchor=anchor, replacement="marker()", scope="f", by="statements")
    count = sum(block[at : at + last + 1 - first] == block[first : last + 1] for at in range(len(block)))
    if count != 1:
        with pytest.raises(NoMatch):
            locate(SourceText(text), edit)
        return
    after = ast.parse(result(text, edit))
    wanted = ast.parse(text)
    assert isinstance(wanted.body[0], ast.FunctionDef)
    wanted.body[0].body[first : last + 1] = ast.parse("marker()").body
    assert ast.dump(after) == ast.dump(wanted)
