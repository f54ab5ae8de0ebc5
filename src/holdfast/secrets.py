"""Keep credentials out of everything that is printed, logged, hashed or stored."""

import re

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_PARAMETERS = re.compile(
    r"(?i)\b((?:[\w-]*(?:secret|password|passwd|token|signature|credential|access_key|account_key|api_key)[\w-]*|sig|pwd)"
    r"\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&,;\"']+)"
)


def scrub(text: str) -> str:
    """Return `text` with user info in URLs and the values of secret-looking parameters replaced by `***`."""
    return _PARAMETERS.sub(r"\1***", _USER_INFO.sub("***@", text))
