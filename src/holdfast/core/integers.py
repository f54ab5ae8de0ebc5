"""Integers with the width they have on the wire.

Strict: no strings, no floats, no booleans, and nothing outside the range, because a number that does not fit
is a damaged or foreign file, not something to round.
"""

from typing import Annotated

from pydantic import Field

U16 = Annotated[int, Field(strict=True, ge=0, le=2**16 - 1)]
U32 = Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(strict=True, ge=0, le=2**64 - 1)]
I64 = Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1)]
