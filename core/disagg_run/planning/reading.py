"""A plan document back into records."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from disagg_run.errors import SpecError
from disagg_run.planning.document import LaunchPlan
from disagg_run.planning.provenance import SCHEMA

T = TypeVar("T", bound=LaunchPlan)

_REMEDY = "give a file made by plan --format json"


def read_plan(cls: type[T], text: str | bytes, *, what: str = "the plan document") -> T:
    """The plan that ``text`` holds; ``what`` names it in errors.

    Raises SpecError where it is no JSON object, of another schema, has unknown or missing keys or values of a wrong
    type, or where its digest is not that of its content.
    """
    data = _json_object(text, what)
    if not {"schema", "digest", "ranks"} <= data.keys():
        raise SpecError(f"{what} is no plan", remedy=_REMEDY)
    schema = data.pop("schema")
    if schema != SCHEMA:
        raise SpecError(
            f"{what} has schema {schema!r}, this disagg-run reads schema {SCHEMA}",
            remedy="make the plan anew with this version",
        )
    digest = data.pop("digest")
    plan = _structure(cls, data, what)
    if digest != plan.digest:
        raise SpecError(
            f"the digest of {what} is {digest!r}, but its content has {plan.digest!r}",
            remedy="it was changed by hand or damaged: make it anew, or change it with attrs.evolve and to_json",
        )
    return plan


def _json_object(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)
        raise SpecError(f"{what} is no JSON: {reason[:1].lower()}{reason[1:]}", remedy=_REMEDY) from None
    if not isinstance(data, dict):
        raise SpecError(f"{what} is no JSON object", remedy=_REMEDY)
    return data


def _structure(cls: type[T], data: dict[str, Any], what: str) -> T:
    import cattrs  # ~90 ms to import, and only a reader of plans needs it

    converter = cattrs.Converter(forbid_extra_keys=True)
    for scalar in (int, float, str, bool):
        converter.register_structure_hook(scalar, _exact)
    try:
        return converter.structure(data, cls)
    except cattrs.BaseValidationError as error:
        # A misspelt key shows both as missing and as extra; the extra one is what stands in the document.
        reasons = sorted(cattrs.transform_error(error), key=lambda reason: "extra fields" not in reason)
        raise SpecError(
            f"{what} does not fit: {reasons[0].replace('$.', '').replace('$', 'the document')}",
            remedy="make the plan anew with this version",
        ) from None


def _exact(value: Any, kind: type) -> Any:
    """A scalar as it stands: cattrs would turn 8010 into '8010', and a plan must not change by being read."""
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise ValueError(f"{value!r} is no {kind.__name__}")
