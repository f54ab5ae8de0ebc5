"""A MariaDB server of our own, from the distribution's package (scripts/install-mariadb), on a loopback port.

HOLDFAST_TEST_MYSQLD may name a `mysqld` of MySQL instead, for trying the same tests there.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql

_SHARED_MEMORY = "/dev/shm"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
MYSQLD = os.environ.get("HOLDFAST_TEST_MYSQLD")
"""MySQL's server program; MariaDB's is used when it is not set."""
PASSWORD = "hunter2-cdc"
_PATIENCE_SECONDS = 120.0
_SETTINGS = (
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--log-bin=mysql-bin",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-buffer-pool-size=32M",
    "--character-set-server=utf8mb4",
    "--max-connections=200",
)
_MARIADB_SETTINGS = ("--log-slave-updates", "--gtid-strict-mode=ON", "--innodb-log-file-size=32M")
_MYSQL_SETTINGS = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--mysqlx=OFF", "--secure-file-priv=")


class Server:
    """A server with an empty database `shop`, and a user who may do what the documentation asks for."""

    def __init__(self, server_id: int = 1, settings: Sequence[str] = ()) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=_SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else None))
        # A server that starts removes the temporary tables of others that have the same directory for them, and
        # those die of it.
        self._temporary = self._folder / "tmp"
        self._temporary.mkdir()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for folder in (self._folder, self._temporary):
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        self.port = _free_port()
        self.url = f"mysql://cdc:{PASSWORD}@127.0.0.1:{self.port}/shop"
        self._settings = [f"--server-id={server_id}", *_SETTINGS, *(_MYSQL_SETTINGS if MYSQLD else _MARIADB_SETTINGS)]
        self._settings += settings
        self._process: subprocess.Popen[bytes] | None = None
        self._initialise()

    def _initialise(self) -> None:
        data, temporary = f"--datadir={self._folder / 'data'}", f"--tmpdir={self._temporary}"
        if MYSQLD:
            command = [MYSQLD, "--no-defaults", data, temporary, "--initialize-insecure"]
        else:
            program = shutil.which("mariadb-install-db", path=_PATH)
            assert program is not None, "the tests of mysql_cdc need MariaDB: scripts/install-mariadb"
            command = [program, "--no-defaults", data, temporary]
            command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        self._run(command)

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **self._user)
        assert done.returncode == 0, done.stdout + done.stderr

    # life

    def start(self) -> None:
        """Start it as our own child and wait until it answers."""
        program = MYSQLD or shutil.which("mariadbd", path=_PATH)
        assert program is not None
        command = [program, "--no-defaults", f"--datadir={self._folder / 'data'}", f"--port={self.port}"]
        command += [f"--socket={self._folder / 'socket'}", f"--pid-file={self._folder / 'pid'}"]
        command += [f"--tmpdir={self._temporary}", *self._settings]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._user)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._answers():
            assert self.is_running, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, pymysql.err.OperationalError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self._folder / "socket"))
            self.connect(database=None).close()
            return True
        return False

    def stop(self) -> None:
        """Stop it as its service manager would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Start it again, whatever became of it."""
        if self.is_running:
            self.stop()
        self.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def complain_if_dead(self) -> None:
        """Print the end of its log, if it died of something that was not our doing."""
        if self._process is not None and (code := self._process.poll()) not in (None, 0, -signal.SIGKILL):
            print(f"the server ended with {code}", *(self._folder / "log").read_text().splitlines()[-80:], sep="\n")

    def remove(self) -> None:
        if self.is_running:
            self.kill()
        shutil.rmtree(self._folder)

    # use

    def prepare(self) -> None:
        """Create the database and the user."""
        with self.connect(database=None) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
            how = f"WITH mysql_native_password BY '{PASSWORD}'" if MYSQLD else f"BY '{PASSWORD}'"
            cursor.execute(f"CREATE USER cdc@'%' IDENTIFIED {how}")
            cursor.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO cdc@'%'")
            cursor.execute("GRANT SELECT, LOCK TABLES ON shop.* TO cdc@'%'")

    def connect(self, database: str | None = "shop", **settings: Any) -> Any:
        """Connect as the one who may do everything."""
        return pymysql.connect(
            unix_socket=str(self._folder / "socket"), user="root", database=database, autocommit=True, **settings
        )

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in the database `shop`; return the rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(server_id: int = 1, settings: Sequence[str] = ()) -> Iterator[Server]:
    """Start a server, and leave nothing of it behind."""
    server = Server(server_id, settings)
    try:
        server.start()
        server.prepare()
        yield server
    finally:
        server.complain_if_dead()
        server.remove()
