"""Keep credentials out of everything that is printed, logged, hashed or stored."""

import re

_USER_INFO = re.compile(r"(?<=://)[^/\s]+@")
_AUTHORIZATION = re.compile(
    r"(?i)\b(authorization[\"']?\s*[=:]\s*[\"']?(?:basic|bearer|digest|negotiate|sharedkey|token)\s+)[^\s,;\"']+"
)
_PARAMETERS = re.compile(
    r"(?i)\b((?:[\w.-]*(?:secret|passw(?:or)?d|passphrase|token|signature|credential"
    r"|(?:access|account|api|private)[._-]?key)[\w.-]*|sig|pwd)"
    r"[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&,;\"']+)"
)


def scrub(text: str) -> str:
    """Return `text` with user info in URLs and the values of secret-looking parameters replaced by `***`.

    Parameters are found as `name=value`, `name: value` and in the quotes of JSON or a printed dictionary.
    """
    text = _USER_INFO.sub("***@", text)
    text = _AUTHORIZATION.sub(r"\1***", text)
    return _PARAMETERS.sub(r"\1***", text)
