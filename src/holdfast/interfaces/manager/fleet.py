"""Everything one manager answers for: pipelines that it runs, and stores that it only looks at."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.status import BootstrapPolicy
from holdfast.engine.places import local_base
from holdfast.errors import CheckpointStoreError, InvalidRequest
from holdfast.interfaces.control import ControlError, DirectoryEntry
from holdfast.interfaces.manager.asking import Asker
from holdfast.interfaces.manager.logs import PipelineLog
from holdfast.interfaces.manager.managed import ManagedPipeline, looking_at
from holdfast.interfaces.manager.memory import Desired, Memory, StorageStatus
from holdfast.interfaces.manager.settings import FleetSettings, Notice
from holdfast.interfaces.manager.standing import Launch
from holdfast.interfaces.manager.supervisor import Supervisor
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.service import CheckpointService

_NAMED_STORE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]{0,62})=(?P<store>.+)")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_ON_CHANGE = {
    BootstrapPolicy.ALLOW: "allow",
    BootstrapPolicy.REJECT: "reject",
    BootstrapPolicy.AWAIT_APPROVAL: "approve",
}


class Fleet:
    """Pipelines and stores by name: the manager's `PipelineDirectory`."""

    def __init__(
        self,
        pipelines: Mapping[str, ManagedPipeline],
        stores: Mapping[str, CheckpointService],
        asker: Asker,
        clock: Clock,
    ) -> None:
        self.pipelines, self.stores = dict(pipelines), dict(stores)
        self._asker, self._clock = asker, clock

    def names(self) -> Sequence[str]:
        """Return every name, sorted."""
        return sorted([*self.pipelines, *self.stores])

    def find(self, name: str) -> DirectoryEntry:
        """Return what has this name."""
        if name in self.pipelines:
            return DirectoryEntry(name, control=self.pipelines[name])
        if name in self.stores:
            return DirectoryEntry(name, store=self.stores[name])
        raise ControlError.unknown_pipeline(name)

    def only(self) -> DirectoryEntry:
        """Return the only one there is."""
        names = self.names()
        if len(names) == 1:
            return self.find(names[0])
        raise ControlError(
            404, "UnknownPipelineName", f"name one of {', '.join(names)}: /v0/pipelines/NAME/...", {"names": names}
        )

    def pipeline(self, name: str) -> ManagedPipeline:
        """Return a pipeline that is run here."""
        entry = self.find(name)
        if entry.name not in self.pipelines:
            _ = entry.pipeline  # Says that there is only a store.
        return self.pipelines[name]

    def listening(self, name: str | None) -> ManagedPipeline | None:
        """Return a pipeline, or the only one, if its process listens; None otherwise."""
        if name is None:
            name = self.names()[0] if len(self.names()) == 1 else ""
        pipeline = self.pipelines.get(name)
        return pipeline if pipeline is not None and pipeline.supervisor.standing.address is not None else None

    def open(self) -> None:
        """Bring every pipeline to where it is wanted, and keep it there."""
        for pipeline in self.pipelines.values():
            pipeline.open()

    def close(self, seconds: float) -> list[str]:
        """End every process; return the names of those that had to be killed after `seconds`."""
        deadline = self._clock.monotonic() + seconds
        for pipeline in self.pipelines.values():
            pipeline.close()
        killed = []
        for name, pipeline in self.pipelines.items():
            if not pipeline.supervisor.join(deadline - self._clock.monotonic()):
                killed.append(name)
        self._asker.close()
        return killed


def build_fleet(
    targets: Iterable[str], settings: FleetSettings, notice: Notice, clock: Clock = SYSTEM_CLOCK
) -> Fleet:
    """Read pipeline files and open stores; a target that is a file is a pipeline file, anything else a store."""
    files: dict[str, PipelineFile] = {}
    stores: dict[str, CheckpointService] = {}
    for target in targets:
        if os.path.isfile(target) or target.endswith((".yaml", ".yml")):
            file = read_pipeline_file(target)
            _refuse_twice(file.name, [*files, *stores])
            files[file.name] = file
        else:
            name, url = _named(target)
            _refuse_twice(name, [*files, *stores])
            stores[name] = open_service(url)
    pipelines: dict[str, ManagedPipeline] = {}
    asker = Asker()
    try:
        for name, file in files.items():
            pipelines[name] = _managed(file, settings, notice, asker, clock)
    except BaseException:
        for pipeline in pipelines.values():
            pipeline.supervisor.release()
        raise
    return Fleet(pipelines, stores, asker, clock)


def _managed(
    file: PipelineFile, settings: FleetSettings, notice: Notice, asker: Asker, clock: Clock
) -> ManagedPipeline:
    folder = _folder(file, settings)

    def first() -> tuple[Desired, StorageStatus]:
        return Desired.RUNNING if settings.start else Desired.STOPPED, _storage_of(file)

    def tell(what: str, facts: dict[str, Any]) -> None:
        notice(file.name, what, facts)

    memory = Memory.open(folder, first, clock)
    supervisor = Supervisor(
        lambda launch: [*settings.command, *run_arguments(file, launch)],
        memory,
        PipelineLog(os.path.join(folder, "log"), settings.logs),
        settings.restarts,
        tell,
        clock,
    )
    return ManagedPipeline(file, supervisor, asker)


def run_arguments(file: PipelineFile, launch: Launch) -> list[str]:
    """Return what `holdfast` is called with to run a pipeline as it is wanted."""
    arguments = ["run", file.path, "--http", "127.0.0.1:0"]
    if launch.initial is not Desired.RUNNING:
        arguments.append(f"--{launch.initial.value.lower()}")
    if launch.bootstrap_policy is not None:
        arguments += ["--on-change", _ON_CHANGE[launch.bootstrap_policy]]
    if launch.sinks is not None:
        arguments += ["--sinks", launch.sinks]
    return arguments


def _folder(file: PipelineFile, settings: FleetSettings) -> str:
    if settings.data is not None:
        return os.path.abspath(os.path.join(settings.data, file.name))
    return os.path.join(local_base(looking_at(file.store).store, file.name), "serve")


def _storage_of(file: PipelineFile) -> StorageStatus:
    try:
        return StorageStatus.IN_USE if looking_at(file.store).store.list_ids() else StorageStatus.CLEARED
    except CheckpointStoreError:
        return StorageStatus.IN_USE  # Storage that does not answer is not empty.


def _named(target: str) -> tuple[str, str]:
    if (given := _NAMED_STORE.fullmatch(target)) is not None:
        return given["name"], given["store"]
    name = _NOT_IN_A_NAME.sub("-", os.path.basename(target.rstrip("/"))).strip("-_.")[:63]
    if not name:
        raise InvalidRequest(f"'{target}' gives no name to call the store by: write NAME={target}")
    return name, target


def _refuse_twice(name: str, known: Sequence[str]) -> None:
    if name in known:
        raise InvalidRequest(
            f"two targets are called '{name}': a pipeline's name stands in its file, a store is named by NAME=STORE"
        )
