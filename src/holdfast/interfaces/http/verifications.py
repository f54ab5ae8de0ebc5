"""Verifications that somebody asked for: each reads every byte of some checkpoints, one after the other, in turn."""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from holdfast.clock import SYSTEM_CLOCK, Clock, new_uuid
from holdfast.errors import HoldfastError
from holdfast.interfaces.control import ControlError
from holdfast.interfaces.http.remembering import remember
from holdfast.interfaces.reports import Verification, time_text
from holdfast.interfaces.service import CheckpointService
from holdfast.secrets import scrub

_WAITING_AT_MOST = 8
_ENDED_KEPT = 32


class _Cancelled(Exception):
    """Nobody wants to know any more."""


@dataclass
class VerificationJob:
    """One verification, as it goes on: `waiting`, `running`, then `done`, `failed` or `cancelled`."""

    id: UUID
    pipeline: str
    checkpoint_ids: Sequence[int]
    bytes_total: int
    requested_at_ms: int
    status: str = "waiting"
    bytes_read: int = 0
    result: Verification | None = None
    error: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.status not in ("waiting", "running")

    def to_json_value(self) -> dict[str, Any]:
        """Return how it stands; `result` is there when it is done."""
        return {
            "id": str(self.id),
            "pipeline": self.pipeline,
            "status": self.status,
            "requested_at": time_text(self.requested_at_ms),
            "checkpoint_ids": list(self.checkpoint_ids),
            "bytes_read": self.bytes_read,
            "bytes_total": self.bytes_total,
            "result": None if self.result is None else self.result.to_json_value(),
            "error": self.error,
        }


class Verifications:
    """All of them, over all pipelines. One at a time: reading everything is work for the disk."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: deque[VerificationJob] = deque()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-verify")

    def begin(self, pipeline: str, service: CheckpointService, references: Sequence[str]) -> VerificationJob:
        """Take a verification on; without references all checkpoints. Returns before any state is read."""
        ids = service.references_to_ids(references)
        job = VerificationJob(
            new_uuid(self._clock), pipeline, ids, service.bytes_to_verify(ids), self._clock.now_ms()
        )
        with self._lock:
            if sum(not each.ended for each in self._jobs) >= _WAITING_AT_MOST:
                raise ControlError(429, "TooManyVerifications", "other verifications have to end first")
            self._jobs.append(job)
            ended = [each for each in self._jobs if each.ended]
            for old in ended[: max(len(ended) - _ENDED_KEPT, 0)]:
                self._jobs.remove(old)
        self._worker.submit(self._run, job, service)
        return job

    def of(self, pipeline: str) -> list[VerificationJob]:
        """Return those of a pipeline, oldest first."""
        with self._lock:
            return [job for job in self._jobs if job.pipeline == pipeline]

    def find(self, pipeline: str, id: UUID) -> VerificationJob:
        """Return one of a pipeline's."""
        for job in self.of(pipeline):
            if job.id == id:
                return job
        raise ControlError(404, "UnknownVerification", f"there is no verification {id} here, or it ended long ago")

    def close(self) -> None:
        """Break off what is running and forget what waits."""
        with self._lock:
            for job in self._jobs:
                job.cancelled.set()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: VerificationJob, service: CheckpointService) -> None:
        def read(count: int) -> None:
            job.bytes_read += count
            if job.cancelled.is_set():
                raise _Cancelled

        job.status = "running"
        try:
            read(0)
            found = [service.verify([id], read) for id in job.checkpoint_ids]
            remember(service.store, found, self._clock)
            job.result = _together(found)
            job.status = "done"
        except _Cancelled:
            job.status = "cancelled"
        except HoldfastError as error:
            job.error, job.status = scrub(str(error)), "failed"
        except Exception as error:
            job.error, job.status = f"a fault in holdfast: {type(error).__name__}", "failed"


def _together(found: Sequence[Verification]) -> Verification:
    """Return several verifications as one."""
    return Verification(
        store=found[0].store,
        verdicts=tuple(verdict for each in found for verdict in each.verdicts),
        bytes_read=sum(each.bytes_read for each in found),
        elapsed_seconds=sum(each.elapsed_seconds for each in found),
    )
