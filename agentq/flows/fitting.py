"""Whether each part of a flow can take what the part before it gives, by their annotations. Pure.

Only what fails for every value is refused: values travel as JSON, so a model may well become
another one, and ``"3"`` an int. What has no annotation, a union or a type not named here passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, RootModel

from agentq.broker.sequence import Each, Sequence
from agentq.broker.step import Step
from agentq.errors import DefinitionError
from agentq.outcome import Err, Ok

_UNKNOWN = object()
_OUTCOMES = object()
"""What follows an `each()` is given: a list of `Ok` and `Err`."""

_LISTS = (list, tuple, set, frozenset)
_SCALARS = (bool, int, float, str)


def check(flow: str, sequence: Sequence) -> None:
    """Do nothing where all parts of *sequence* may fit.

    Raises:
        DefinitionError: a step can not take what it would be given, or an `each()` finds no list.
    """
    _follow(flow, sequence, _UNKNOWN, None)


def _follow(flow: str, sequence: Sequence, given: Any, giver: Step | None) -> None:
    for part in sequence.parts:
        if isinstance(part, Each):
            _follow(flow, part.part, _items(flow, part, given, giver), None)
            given, giver = _OUTCOMES, None
            continue
        step = part.step
        assert step is not None  # noqa: S101 -- `sequence_of` takes only steps
        wanted = step.argument_type
        if given is _OUTCOMES:
            _check_outcomes(flow, step, wanted)
        elif not _may_fit(given, wanted):
            source = f"step {giver.name!r} returns" if giver else "each() gives it"
            raise DefinitionError(
                f"flow {flow!r}: step {step.name!r} takes {_shown(wanted)}, but {source} "
                f"{_shown(given)}"
            )
        given, giver = step.result_type, step


def _items(flow: str, part: Each, given: Any, giver: Step | None) -> Any:
    """Return the type of what *part* runs over, one by one."""
    if given in (_UNKNOWN, _OUTCOMES):
        return _UNKNOWN
    source = f"step {giver.name!r} returns" if giver else "each() gives it"
    found = given
    if part.of is not None and _is_plain_model(given):
        names = _fields(given)
        if part.of not in names:
            raise DefinitionError(
                f"flow {flow!r}: each(of={part.of!r}), but {source} {_shown(given)}, which has "
                f"{', '.join(names) or 'no fields'}"
            )
        field = given.model_fields.get(part.of)
        found = _UNKNOWN if field is None else field.annotation
    elif part.of is not None and not _is_scalar(given) and get_origin(given) not in _LISTS:
        return _UNKNOWN
    if _is_scalar(found) or _is_plain_model(found) or (part.of and found is given):
        of = "" if part.of is None else f"of={part.of!r}"
        hint = "; name the list with of=" if part.of is None and _is_plain_model(found) else ""
        where = f"{_shown(given)}.{part.of} is " if found is not given else f"{source} "
        raise DefinitionError(
            f"flow {flow!r}: each({of}) needs a list, but {where}{_shown(found)}{hint}"
        )
    return get_args(found)[0] if get_origin(found) is list else _UNKNOWN


def _check_outcomes(flow: str, step: Step, wanted: Any) -> None:
    item = get_args(wanted)[0] if get_origin(wanted) is list else None
    if item is None:
        wrong = _is_scalar(wanted) or _is_plain_model(wanted)
    elif _is_plain_model(item):
        wrong = any(f.is_required() and n != "value" for n, f in item.model_fields.items())
    else:
        wrong = _is_scalar(item)
    if wrong:
        right = _shown(item or "T")
        raise DefinitionError(
            f"flow {flow!r}: step {step.name!r} takes {_shown(wanted)}, but each() gives it one Ok "
            f"or Err for each member: after each() annotate list[Ok[{right}] | Err]"
        )


def _may_fit(given: Any, wanted: Any) -> bool:
    if wanted is str and given in (bool, int, float):
        return False  # pydantic makes numbers of texts, never texts of numbers
    kinds = _kind(given), _kind(wanted)
    if None in kinds or kinds in {("scalar", "scalar"), ("list", "list")}:
        return True
    if kinds == ("model", "model"):
        return _has_what_is_required(given, wanted)
    return kinds[0] == kinds[1]


def _kind(annotation: Any) -> str | None:
    if annotation is type(None):
        return "none"
    if annotation in _SCALARS:
        return "scalar"
    if annotation in _LISTS or get_origin(annotation) in _LISTS:
        return "list"
    return "model" if _is_plain_model(annotation) else None


def _has_what_is_required(given: type[BaseModel], wanted: type[BaseModel]) -> bool:
    names = _fields(given)
    return given.model_config.get("extra") == "allow" or all(
        name in names or field.alias or field.validation_alias
        for name, field in wanted.model_fields.items()
        if field.is_required()
    )


def _is_scalar(annotation: Any) -> bool:
    return annotation in _SCALARS or annotation is type(None)


def _is_plain_model(annotation: Any) -> bool:
    """Whether it is a model whose JSON is an object of its fields, read field by field."""
    if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
        return False
    own = annotation.__pydantic_decorators__
    adapted = own.model_serializers or any(
        one.info.mode != "after" for one in own.model_validators.values()
    )
    return not (issubclass(annotation, RootModel) or adapted)


def _fields(model: type[BaseModel]) -> list[str]:
    """Return the keys that its JSON may have."""
    fields: Mapping[str, Any] = model.model_fields
    aliases = [field.serialization_alias or field.alias for field in fields.values()]
    return [*fields, *model.model_computed_fields, *filter(None, aliases)]


def _shown(annotation: Any) -> str:
    if annotation is type(None):
        return "None"
    if annotation in (Ok, Err) or not get_args(annotation):
        return str(getattr(annotation, "__name__", annotation))
    return str(annotation).replace("typing.", "").replace(f"{__name__}.", "")
