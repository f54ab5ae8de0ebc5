"""Where a Kafka cluster is and how to log in, said once, in the words of Spark's client and of librdkafka."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import PipelineDefinitionError
from holdfast.secrets import scrub

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MECHANISMS = tuple(_LOGIN_MODULES)
SECRET_SPARK_OPTIONS = frozenset({"kafka.sasl.jaas.config"})
_SHORTEST_HIDDEN = 4


@dataclass(frozen=True)
class Cluster:
    """A cluster by its bootstrap servers, and the login.

    Without `security_protocol`, a user name means SASL_SSL, a `ca_file` SSL, and neither PLAINTEXT.
    """

    bootstrap_servers: str
    security_protocol: str | None = None
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise PipelineDefinitionError("bootstrap_servers is empty: write host:port, or several with commas")
        _one_of("security_protocol", self.protocol, PROTOCOLS)
        _one_of("sasl_mechanism", self.mechanism, MECHANISMS)
        if (self.username is None) != (self.password is None):
            raise PipelineDefinitionError("username and password belong together")
        if self.protocol.startswith("SASL") != (self.username is not None):
            raise PipelineDefinitionError(
                f"security_protocol {self.protocol} {'needs' if self.username is None else 'takes no'} username"
            )
        if self.ca_file is not None and not self.protocol.endswith("SSL"):
            raise PipelineDefinitionError(f"security_protocol {self.protocol} takes no ca_file")

    @property
    def protocol(self) -> str:
        """The security protocol, as Kafka names it."""
        if self.security_protocol is not None:
            return self.security_protocol
        return "SASL_SSL" if self.username is not None else "SSL" if self.ca_file is not None else "PLAINTEXT"

    @property
    def mechanism(self) -> str:
        """How a user name is presented."""
        return self.sasl_mechanism or "PLAIN"

    def login_options(self) -> dict[str, str]:
        """Return the options of Spark's `kafka` format that say how to log in."""
        options = {"kafka.security.protocol": self.protocol}
        if self.ca_file is not None:
            options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": self.ca_file}
        if self.username is not None:
            options["kafka.sasl.mechanism"] = self.mechanism
            options["kafka.sasl.jaas.config"] = (
                f"{_LOGIN_MODULES[self.mechanism]} required "
                f"username={_in_quotes(self.username)} password={_in_quotes(self.password or '')};"
            )
        return options

    def client_settings(self) -> dict[str, str]:
        """Return the settings of librdkafka. Without its certificates the client says nothing that helps."""
        if self.ca_file is not None and not os.path.isfile(self.ca_file):
            raise PipelineDefinitionError(f"ca_file: there is no file {self.ca_file}")
        settings: Mapping[str, str | None] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.protocol,
            "ssl.ca.location": self.ca_file,
            "sasl.mechanism": self.mechanism if self.username is not None else None,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }
        return {key: value for key, value in settings.items() if value is not None}

    def hide(self, text: str) -> str:
        """Return a message of a client without the password."""
        if self.password is not None and len(self.password) >= _SHORTEST_HIDDEN:
            text = text.replace(self.password, "***")
        return scrub(text)


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PipelineDefinitionError(f"{what} is '{value}', expected one of {', '.join(allowed)}")
