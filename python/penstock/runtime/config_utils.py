"""DeepSpeed's base of sections of a configuration that scripts write themselves, with pydantic.

    class Section(DeepSpeedConfigModel):
        depth: int = 2
        layers: int = Field(2, json_schema_extra={"deprecated": True, "new_param": "depth"})

penstock's own configuration needs no pydantic: this module alone does.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import reduce
from typing import Any

from penstock._compatibility import refuse_in
from penstock.errors import AssertedError

if importlib.util.find_spec("pydantic") is None:
    raise ImportError(f"{__name__} needs pydantic, and this Python has none: pip install pydantic")

# isort: split
from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

__all__ = ["DeepSpeedConfigModel"]

refuse_in(globals())

_log = logging.getLogger("penstock")


class DeepSpeedConfigModel(BaseModel):
    """Fields of a section: no others, by name or alias, checked when they are set as well.

    strict: False: values "auto" are left out, so that their fields have their defaults.

    A field's json_schema_extra may say that it is deprecated: its value then goes to the field
    new_param, "a.b" for that of a section, through new_param_fn; not with set_new_param False.
    deprecated_msg is in the log.  AssertedError: both are given.
    """

    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        validate_default=True,
        validate_assignment=True,
        use_enum_values=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    def __init__(self, strict: bool = False, **data: Any) -> None:
        given = {
            name: value
            for name, value in data.items()
            if strict or not isinstance(value, str) or value != "auto" or name == "replace_method"
        }
        super().__init__(**given)
        for name, field in type(self).model_fields.items():
            said = _said_of(field)
            if said.get("deprecated") and name in self.model_fields_set:
                self._hand_on(name, said)

    def _hand_on(self, name: str, said: dict[str, Any]) -> None:
        """The value of a deprecated field goes to the one in its place."""
        new = str(said.get("new_param", ""))
        instead = f": use {new}" if new else ""
        _log.warning("%s is deprecated%s %s", name, instead, said.get("deprecated_msg", ""))
        if not new or not said.get("set_new_param", True):
            return
        *sections, last = new.split(".")
        section = reduce(getattr, sections, self)
        if last in section.model_fields_set:
            raise AssertedError(f"{name} is deprecated, and {new}, in its place, is given, too")
        value = getattr(self, name)
        setattr(section, last, said.get("new_param_fn", _itself)(value))
        self.__dict__.pop(name)


def _said_of(field: FieldInfo) -> dict[str, Any]:
    extra = field.json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}


def _itself(value: Any) -> Any:
    return value
