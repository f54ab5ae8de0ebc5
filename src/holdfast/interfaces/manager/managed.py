"""A pipeline whose process the manager keeps: what the faces ask of it, and what they tell it.

Questions that only the process can answer are forwarded to it before they get here (`forwarding`); those that do
arrive find no process, and say so.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn
from uuid import UUID

from holdfast.core.status import (
    BootstrapPolicy,
    CheckpointActivity,
    CheckpointStatus,
    DeploymentStatus,
    PermanentSuspendError,
    RuntimeStatus,
)
from holdfast.engine.clearing import clear_store, refuse_savepoints
from holdfast.engine.requests import RequestOutcome
from holdfast.errors import PipelineDefinitionError, StoreConfigurationError
from holdfast.interfaces.control import ControlError, PipelineDescription, Synchronisation
from holdfast.interfaces.deciding import approve_change
from holdfast.interfaces.event_hub import EventHub
from holdfast.interfaces.manager.asking import SLOW_SECONDS, Asker, moment
from holdfast.interfaces.manager.child import Child
from holdfast.interfaces.manager.memory import Desired, ErrorBody, StorageStatus
from holdfast.interfaces.manager.standing import Launch, NotNow, Phase, Standing, UndismissedError
from holdfast.interfaces.manager.supervisor import Supervisor
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.service import CheckpointService
from holdfast.secrets import scrub
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_medium

_STATUS_WITHOUT_ANSWER = {
    Phase.STOPPED: DeploymentStatus.STOPPED,
    Phase.PROVISIONING: DeploymentStatus.PROVISIONING,
    Phase.BACKING_OFF: DeploymentStatus.PROVISIONING,
    Phase.STOPPING: DeploymentStatus.STOPPING,
    Phase.AWAITING_APPROVAL: DeploymentStatus.AWAITING_APPROVAL,
}


class ManagedPipeline:
    """One pipeline file and its process, as a `PipelineControl`."""

    def __init__(self, file: PipelineFile, supervisor: Supervisor, asker: Asker) -> None:
        self.file, self.supervisor = file, supervisor
        self._asker = asker
        self._service: tuple[object, CheckpointService] | None = None

    # What is known without the process

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.file.name

    @property
    def service(self) -> CheckpointService:
        """Questions on the store, opened anew after each process: that may have changed what fits together."""
        since = self.supervisor.standing.since
        if self._service is None or self._service[0] != since:
            self._service = (since, looking_at(self.file.store))
        return self._service[1]

    def describe(self) -> PipelineDescription:
        """Return the facts: the manager's own, and what the process says of itself."""
        standing, remembered = self.supervisor.standing, self.supervisor.remembered
        said = self._said(standing)
        runtime, incarnation = said.get("deployment_runtime_status"), said.get("deployment_id")
        approval = {"approval_diff": standing.approval} if standing.approval else None
        return PipelineDescription(
            name=self.name,
            id=remembered.id,
            status=_status_of(standing, said),
            status_since=moment(said["deployment_status_since"]) if said else standing.since,
            desired_status=DeploymentStatus(remembered.desired.value),
            created_at=remembered.created_at,
            runtime_status=None if runtime is None else RuntimeStatus(runtime),
            runtime_status_details=said.get("deployment_runtime_status_details") or approval,
            incarnation_uuid=None if incarnation is None else UUID(incarnation),
            error=remembered.error.model_dump() if remembered.error else None,
            storage_status=remembered.storage.value,
            runtime_config=said.get("runtime_config", {}),
        )

    def _said(self, standing: Standing) -> dict[str, Any]:
        """Return what the process says of itself; nothing when there is none to be asked, or it does not answer."""
        if standing.phase is Phase.UP:
            with contextlib.suppress(ControlError):
                answer: dict[str, Any] = self._ask("GET", f"/v0/pipelines/{self.name}?selector=status", standing)
                return answer
        return {}

    # What only a process can do

    @property
    def incarnation_uuid(self) -> UUID:
        """There is no process."""
        self._not_deployed()

    @property
    def sync(self) -> Synchronisation | None:
        """There is no process."""
        self._not_deployed()

    @property
    def events(self) -> EventHub:
        """There is no process."""
        self._not_deployed()

    def stats(self) -> dict[str, Any]:
        """There is no process."""
        self._not_deployed()

    def metrics(self) -> bytes:
        """Return what the process counts, for the metrics of all pipelines in one."""
        standing = self.supervisor.standing
        if standing.address is None or standing.token is None:
            self._not_deployed()
        return self._asker.read(self.name, standing.address, standing.token, f"/v0/pipelines/{self.name}/metrics")

    def request_checkpoint(self) -> int:
        """There is no process."""
        self._not_deployed()

    def checkpoint_status(self) -> CheckpointStatus:
        """There is no process."""
        self._not_deployed()

    def checkpoint_outcomes(self) -> Sequence[RequestOutcome]:
        """There is no process."""
        self._not_deployed()

    def checkpoint_activity(self) -> CheckpointActivity:
        """There is no process."""
        self._not_deployed()

    def permanent_checkpoint_errors(self) -> Sequence[PermanentSuspendError]:
        """There is no process."""
        self._not_deployed()

    # Life

    def open(self) -> None:
        """Begin to keep the pipeline as it is wanted; a clearing that was cut off goes on."""
        if self.supervisor.remembered.storage is StorageStatus.CLEARING:
            threading.Thread(target=self.finish_clearing, name="holdfast-clear").start()
        self.supervisor.open()

    def start(
        self,
        initial: RuntimeStatus,
        *,
        bootstrap_policy: BootstrapPolicy | None = None,
        dismiss_error: bool = True,
        sinks: str | None = None,
    ) -> None:
        """Want the pipeline running, paused or in standby."""
        self._refuse_another_file()
        with self._translated():
            launch = Launch(Desired(initial.value), bootstrap_policy, sinks)
            self.supervisor.start(launch, dismiss_error=dismiss_error)

    def _refuse_another_file(self) -> None:
        """Read the file as its process will: what is wrong with it is better told here than in a log."""
        try:
            file = read_pipeline_file(self.file.path)
            if (file.name, file.store) != (self.file.name, self.file.store):
                raise PipelineDefinitionError(
                    f"{file.path} has another name or store now than when the manager started: restart the manager"
                )
        except PipelineDefinitionError as error:
            raise ControlError(400, "PipelineDefinitionError", str(error)) from None

    def pause(self) -> None:
        """Hold before the next epoch."""
        self._tell("pause", Desired.PAUSED)

    def resume(self) -> None:
        """Go on after a pause."""
        self._tell("resume", Desired.RUNNING)

    def activate(self, initial: RuntimeStatus) -> None:
        """Leave standby: take over."""
        self._tell(f"activate?initial={initial.value.lower()}", Desired(initial.value))

    def _tell(self, action: str, desired: Desired) -> None:
        standing = self.supervisor.standing
        if standing.phase is not Phase.UP:
            self._not_deployed()
        self._ask("POST", f"/v0/pipelines/{self.name}/{action}", standing, seconds=SLOW_SECONDS)
        self.supervisor.want(desired)

    def stop(self, *, force: bool) -> None:
        """Want it stopped: let the running epoch finish, or with `force` end the process at once."""
        self._ask_to_end(self.supervisor.stop(force=force))

    def restart(self, *, force: bool) -> None:
        """Replace the process by a new one."""
        with self._translated():
            self._ask_to_end(self.supervisor.restart(force=force))

    def close(self) -> None:
        """End the process with the manager; it is wanted again when the manager is."""
        self._ask_to_end(self.supervisor.close())

    def _ask_to_end(self, child: Child | None) -> None:
        if child is None or child.address is None:
            return
        try:
            path = f"/v0/pipelines/{self.name}/stop?force=false"
            self._asker.ask(self.name, child.address, child.token, "POST", path)
        except ControlError:
            child.terminate()  # It cannot be asked, so it is told: a signal means the same.

    def approve(self) -> None:
        """Accept that the pipeline changed, and go on."""
        with self._translated():
            approval = self.supervisor.approval()
        approve_change(open_service(self.file.store, write=True).store, approval["fingerprint"])
        self.supervisor.approved()

    def dismiss_error(self) -> None:
        """Forget why the pipeline failed."""
        self.supervisor.dismiss_error()

    def clear(self) -> None:
        """Begin to remove every checkpoint and all state; only while the pipeline is stopped."""
        refuse_savepoints(self.service.store)
        with self._translated():
            begun = self.supervisor.begin_clearing()
        if begun:
            threading.Thread(target=self.finish_clearing, name="holdfast-clear").start()

    def finish_clearing(self) -> None:
        """Remove what there is, and let the pipeline start again."""
        failure: ErrorBody | None = None
        try:
            store = open_service(self.file.store, write=True, create=True).store
            clear_store(store, self.name, work_dir=self.file.settings.get("work_dir"))
        except Exception as error:
            message = self.file.environment.redact(scrub(f"clearing failed: {error}"))
            failure = ErrorBody(message=message, error_code=type(error).__name__)
        self.supervisor.end_clearing(failure)

    # Shared

    def _ask(self, method: str, path: str, standing: Standing, **options: Any) -> Any:
        if standing.address is None or standing.token is None:
            self._not_deployed()
        return self._asker.ask(self.name, standing.address, standing.token, method, path, **options)

    def _not_deployed(self) -> NoReturn:
        standing, remembered = self.supervisor.standing, self.supervisor.remembered
        raise ControlError.not_deployed(self.name, _status_of(standing).value, remembered.desired.value)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except NotNow as refusal:
            raise ControlError(
                400,
                "IllegalPipelineAction",
                f"cannot {refusal.action} pipeline '{self.name}', which is {refusal.phase}: {refusal}",
                {"pipeline_name": self.name, "action": refusal.action, "status": refusal.phase.value},
            ) from None
        except UndismissedError as refusal:
            raise ControlError(
                400,
                "CannotStartWithUndismissedError",
                f"pipeline '{self.name}' failed: {refusal}; dismiss the error first",
                {"pipeline_name": self.name},
            ) from None


def _status_of(standing: Standing, said: Mapping[str, Any] | None = None) -> DeploymentStatus:
    if not said:
        return _STATUS_WITHOUT_ANSWER.get(standing.phase, DeploymentStatus.UNAVAILABLE)
    status = DeploymentStatus(said["deployment_status"])
    # One whose pipeline has ended is still ending itself: it cannot be started yet.
    return DeploymentStatus.STOPPING if status is DeploymentStatus.STOPPED else status


def looking_at(url: str) -> CheckpointService:
    """Return a service on a store that may not be there yet, and is not made by looking."""
    try:
        return open_service(url)
    except StoreConfigurationError:
        return CheckpointService(DurableCheckpointStore(open_medium(url, {}, read_only=False), retain=None))
