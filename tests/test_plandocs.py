"""The page of the plan document: made from its records, whole, and up to date."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_run.hookdocs import field_comments
from disagg_run.plandocs import document_fields, plan_reference, records_of
from disagg_run.planning import document
from tests.engine_plans import PLANNED

PAGE = Path(__file__).parents[1] / "docs" / "plan.md"
RECORDS = records_of(document.LaunchPlan)


def test_the_page_is_what_the_code_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert plan_reference() == written, (
        "docs/plan.md is out of date: run `python -m disagg_run.plandocs > docs/plan.md`"
    )
    done = subprocess.run([sys.executable, "-m", "disagg_run.plandocs"], capture_output=True, check=True)
    assert done.stdout.decode() == written


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.__name__))
def test_each_key_of_each_record_says_what_it_is(record: type) -> None:
    comments = field_comments(record)
    assert [field.name for field in document_fields(record) if not comments.get(field.name)] == []


def keys(data: Any) -> Iterator[str]:
    """All keys of a document that are no names of variables, ports or the like."""
    if isinstance(data, list):
        for item in data:
            yield from keys(item)
    elif isinstance(data, dict):
        for key, item in data.items():
            yield key
            if key not in (
                "env",
                "env_prepend",
                "env_append",
                "ports",
                "port_counts",
                "identity",
                "needs",
                "preflight",
            ):
                yield from keys(item)


@pytest.mark.parametrize("engine", sorted(PLANNED))
def test_every_key_of_a_plan_is_on_the_page(engine: str) -> None:
    plan = json.loads(PLANNED[engine](image="engine:1", simulate=True, forbid_patches=True).to_json())
    page = PAGE.read_text(encoding="utf-8")
    assert {key for key in keys(plan) if f"`{key}`" not in page} == set()
    assert "forbid_patches" in set(keys(plan))
