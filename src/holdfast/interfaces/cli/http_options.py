"""Options of commands that serve the HTTP API, and what they make of a file's own settings."""

from typing import Annotated

import typer

from holdfast.errors import InvalidRequest
from holdfast.interfaces.http.addresses import Address
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.settings import HttpSettings
from holdfast.interfaces.pipeline_file.http import HttpSection

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="ADDRESS",
        help="Where the HTTP API listens, HOST:PORT; overrides the file. [default: 127.0.0.1:8080, or a free port]",
        show_default=False,
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP API.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let --http listen where others can reach it, without a token.")
]


def http_settings(section: HttpSection, address: str | None, *, off: bool, insecure: bool) -> HttpSettings | None:
    """Return where to serve and whom; None when nothing is to be served. Tokens are never on a command line."""
    if off and address is not None:
        raise InvalidRequest("--http and --no-http exclude each other")
    if off or (not section.enabled and address is None):
        return None
    tokens = Tokens.of_environment(operator_file=section.token_file, reader_file=section.read_token_file)
    wanted = section.address if address is None else Address.parse(address)
    return HttpSettings(wanted, Security(tokens, section.allowed_hosts), insecure)
