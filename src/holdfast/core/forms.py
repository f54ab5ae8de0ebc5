"""What the rows of a sealed epoch were prepared as: an epoch is shown as that, whatever the pipeline is by then.

The form stands in the token's payload under `FORM`, a JSON object: `columns`, the rows' Arrow schema, and the sink's
own settings (mode, key, what deletes a row, what orders them). A token from before there were forms has none, and one
that the engine completed from the progress record has columns only: what a form does not say is as it is today.
"""

import base64
import zlib
from dataclasses import replace

from holdfast.core.contracts import Token

FORM = "form"
"""Key in a token's payload."""
COLUMNS = "columns"
"""Key in a form: the Arrow schema of the rows, packed."""


def packed(schema: bytes) -> str:
    """Return a serialized Arrow schema as a short text."""
    return base64.b64encode(zlib.compress(schema)).decode()


def unpacked(text: str) -> bytes:
    """Return the serialized Arrow schema; `ValueError` for a text that is none."""
    try:
        return zlib.decompress(base64.b64decode(text))
    except zlib.error as error:
        raise ValueError(str(error)) from error


def with_columns(token: Token, schema: bytes | None) -> Token:
    """Return a token that was sealed without a form with the columns that the progress record knows."""
    if schema is None or FORM in token.payload:
        return token
    return replace(token, payload={**token.payload, FORM: {COLUMNS: packed(schema)}})
