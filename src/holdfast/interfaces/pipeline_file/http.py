"""The section `http` of a pipeline file: where the API listens, and who may use it."""

import re
from dataclasses import dataclass

from holdfast.errors import InvalidRequest
from holdfast.interfaces.http.addresses import Address
from holdfast.interfaces.pipeline_file.keys import KEYS
from holdfast.interfaces.pipeline_file.nodes import Node

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


@dataclass(frozen=True)
class HttpSection:
    """What a file says of its HTTP API. Tokens are in files of their own, or in the environment."""

    enabled: bool = True
    address: Address | None = None
    token_file: str | None = None
    read_token_file: str | None = None
    allowed_hosts: frozenset[str] = frozenset()


def read_http(node: Node | None) -> HttpSection:
    """Read the section; without one the API listens where it does by default."""
    if node is None:
        return HttpSection()
    section = node.section(KEYS["http"])
    enabled, address = section.get("enabled"), section.get("address")
    files = {key: section.get(key) for key in ("token_file", "read_token_file")}
    return HttpSection(
        enabled=True if enabled is None else enabled.flag(),
        address=None if address is None else _address(address),
        allowed_hosts=frozenset() if (hosts := section.get("allowed_hosts")) is None else _hosts(hosts),
        **{key: None if file is None else file.path() for key, file in files.items()},
    )


def _address(node: Node) -> Address:
    try:
        return Address.parse(node.plain())
    except InvalidRequest as error:
        raise node.problem(str(error)) from None


def _hosts(node: Node) -> frozenset[str]:
    hosts = node.texts()
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise node.problem(f"'{host}' is no host name")
    return frozenset(host.lower() for host in hosts)
