"""A listener with TLS and a login, for a broker on 127.0.0.1."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

USERNAME = "reader"
PASSWORD = 'quo"te and back\\slash'
_MODULES = "org.apache.kafka.common.security"
_YEAR = datetime.timedelta(days=365)


def secure_listener(folder: Path) -> dict[str, str]:
    """Return the settings of a listener named SECURE. Who connects needs `ca.pem`, put into `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(key).public_bytes(serialization.Encoding.PEM)
    (folder / "ca.pem").write_bytes(certificate)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(private + certificate)
    password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    plain = f'{_MODULES}.plain.PlainLoginModule required user_{USERNAME}="{password}";'
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        # In a properties file a backslash is written twice.
        "plain.sasl.jaas.config": plain.replace("\\", "\\\\"),
        "scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
    }
    return {f"listener.name.secure.{name}": value for name, value in settings.items()}


def _certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.datetime.now(datetime.UTC)
    number = x509.random_serial_number()
    builder = x509.CertificateBuilder(name, name, key.public_key(), number, now - _YEAR, now + _YEAR)
    builder = builder.add_extension(address, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256())
