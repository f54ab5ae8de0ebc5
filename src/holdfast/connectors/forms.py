"""Forms of staged rows as connectors handle them: a schema and the settings under which the rows are shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.extras import pa
from holdfast.core.contracts import Token
from holdfast.core.forms import COLUMNS, FORM, packed, unpacked
from holdfast.errors import SinkError


@dataclass(frozen=True)
class Form:
    """What rows are prepared as."""

    schema: Any
    """The rows' `pyarrow.Schema`."""
    settings: Mapping[str, Any]
    """What else showing them depends on, as JSON values: mode, key, ..."""

    def to_payload(self) -> dict[str, Any]:
        """Return what a prepared epoch's payload says."""
        columns = packed(self.schema.serialize().to_pybytes())
        return {FORM: {COLUMNS: columns, **self.settings}}

    @classmethod
    def of(cls, token: Token, today: "Form") -> "Form":
        """Return what a token was prepared as; what it does not say is as it is today."""
        said = dict(token.payload.get(FORM, {}))
        columns = said.pop(COLUMNS, None)
        try:
            schema = today.schema if columns is None else pa.ipc.read_schema(pa.py_buffer(unpacked(columns)))
        except (ValueError, OSError) as error:
            raise SinkError(f"the token of epoch {token.epoch} does not say which columns its rows have") from error
        return cls(schema, {**today.settings, **said})
