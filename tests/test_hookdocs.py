"""The hook reference: made from the code, whole, and up to date."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from disagg_run import context, declarations, hookspecs, patch_records, records
from disagg_run.hookdocs import field_comments, hook_reference
from disagg_run.host_loading import HOOKS

PAGE = Path(__file__).parents[1] / "docs" / "hooks.md"
RECORDS = [
    item
    for module in (declarations, records, patch_records, context)
    for item in vars(module).values()
    if inspect.isclass(item) and item.__module__ == module.__name__ and attrs.has(item)
]


@pytest.fixture(scope="module")
def page() -> str:
    return hook_reference()


def test_the_page_is_what_the_code_says(page: str) -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert page == written, "docs/hooks.md is out of date: run `python -m disagg_run.hookdocs > docs/hooks.md`"


def test_the_command_prints_the_page(page: str) -> None:
    done = subprocess.run([sys.executable, "-m", "disagg_run.hookdocs"], capture_output=True, check=True)
    assert done.stdout.decode() == page
    assert done.stderr == b""


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_says_when_it_is_called_what_comes_of_the_result_and_shows_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(hookspecs, name)) or ""
    assert re.search(r"Called once[^.]*\.", text), "when?"
    assert "Returns: " in text
    assert f"    @hookimpl\n    def {name}(" in text, "an example"
    assert "ctx" not in inspect.signature(getattr(hookspecs, name)).parameters or "``ctx``: " in text


@pytest.mark.parametrize("name", HOOKS)
def test_each_example_is_python_that_compiles_and_takes_the_hooks_arguments(name: str) -> None:
    text = inspect.getdoc(getattr(hookspecs, name)) or ""
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    namespace: dict[str, object] = {"hookimpl": lambda function: function}
    exec(compile(example, name, "exec"), namespace)
    function = namespace[name]
    assert callable(function)
    assert list(inspect.signature(function).parameters) == list(inspect.signature(getattr(hookspecs, name)).parameters)


@pytest.mark.parametrize("name", HOOKS)
def test_the_page_has_each_hook_and_links_to_it(page: str, name: str) -> None:
    assert page.count(f"\n### {name}\n") == 1
    assert f"(#{name})" in page


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.__name__))
def test_each_record_is_on_the_page_with_its_fields(page: str, record: type) -> None:
    part = page.partition(f"\n### {record.__name__}\n")[2].partition("\n### ")[0]
    for field in attrs.fields(record):
        if not field.inherited and not field.name.startswith("_"):
            assert f"| `{field.name}` |" in part
    for name, comment in field_comments(record).items():
        assert comment.replace("``", "`").replace("|", "\\|") in part, name


def test_no_chapter_is_empty(page: str) -> None:
    for chapter in page.split("\n## ")[1:]:
        assert "\n### " in chapter, chapter.partition("\n")[0]
    assert "\n### at_least\n" in page


def test_comments_over_several_lines_are_joined_and_belong_to_the_next_field_only() -> None:
    comments = field_comments(records.EnvSetting)
    assert comments["op"].startswith("``set`` and ``unset`` replace;")
    assert comments["op"].endswith("and required there.")
    assert "default_factory" not in comments
    assert set(comments) <= {field.name for field in attrs.fields(records.EnvSetting)}
