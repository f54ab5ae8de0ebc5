"""What a pipeline says of its copies in a bucket."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

from holdfast.core.intervals import interval_seconds
from holdfast.errors import PipelineDefinitionError
from holdfast.secrets import scrub

LATEST = "latest"
NEVER = "never"
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file")


@dataclass(frozen=True)
class SyncSettings:
    """Where checkpoints are copied to, how often, and what a start does about it. Described in docs/sync.md."""

    bucket: str
    """URL of the bucket and prefix that belong to this pipeline alone."""
    start_from_checkpoint: str = LATEST
    """`latest`, or the uuid of a checkpoint to go back to, once."""
    fail_if_no_checkpoint: bool = False
    """Whether a start that finds no checkpoint anywhere fails; otherwise it starts afresh."""
    push_interval: str = "1 minute"
    """How long after a copy the next one is made; `never` makes copies on request only."""
    pull_interval: str = "10 seconds"
    """How often a standby looks for newer checkpoints."""
    standby: bool = False
    """Whether another machine may take over at any time: every seal is then recorded in the bucket."""
    read_bucket: str | None = None
    """A bucket of another pipeline that an empty store may begin from; it is never written to."""
    retention_min_count: int = 10
    """How many checkpoints the bucket keeps at least."""
    retention_min_age: str | None = None
    """How long a checkpoint is kept at least; None: no longer than the number asks for."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object storage, as for a store: endpoint, region."""

    def __post_init__(self) -> None:
        _check_url("bucket", self.bucket)
        if self.read_bucket is not None:
            _check_url("read_bucket", self.read_bucket)
            if self.read_bucket.rstrip("/") == self.bucket.rstrip("/"):
                raise PipelineDefinitionError("sync: read_bucket is the bucket itself: leave it out")
        if self.start_from_checkpoint != LATEST:
            _check_uuid(self.start_from_checkpoint)
        if self.retention_min_count < 1:
            raise PipelineDefinitionError(
                f"sync: retention_min_count is {self.retention_min_count}: the bucket keeps at least 1 checkpoint"
            )
        if self.standby and self.push_interval == NEVER:
            raise PipelineDefinitionError(
                "sync: push_interval is 'never', but a standby can only go on from copies: name an interval"
            )
        # Asking for them is what refuses a text that is no length of time.
        _ = self.push_seconds, self.pull_seconds, self.min_age_ms

    @property
    def wanted(self) -> UUID | None:
        """The checkpoint that a person named; None: the newest."""
        return None if self.start_from_checkpoint == LATEST else UUID(self.start_from_checkpoint)

    @property
    def push_seconds(self) -> float | None:
        """Seconds between copies; None: on request only."""
        return None if self.push_interval == NEVER else interval_seconds(self.push_interval)

    @property
    def pull_seconds(self) -> float:
        """Seconds between two looks of a standby."""
        return interval_seconds(self.pull_interval)

    @property
    def min_age_ms(self) -> int:
        """How old a checkpoint must be before it may go."""
        return 0 if self.retention_min_age is None else round(interval_seconds(self.retention_min_age) * 1000)


def _check_url(key: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not (parts.path if parts.scheme == "file" else parts.netloc):
        shown = ", ".join(f"{scheme}://" for scheme in ("s3", "gs", "az", "file"))
        raise PipelineDefinitionError(f"sync: {key} is '{scrub(url)}', expected a URL: {shown}")


def _check_uuid(text: str) -> None:
    try:
        UUID(text)
    except ValueError:
        raise PipelineDefinitionError(
            f"sync: start_from_checkpoint is '{text}', expected 'latest' or the uuid of a checkpoint"
        ) from None
