"""Pruning beside the work: no epoch waits for it, and it is safe beside a writer."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.errors import CheckpointStoreError
from holdfast.stores.store import DurableCheckpointStore

_log = logging.getLogger(__name__)


class Housekeeping:
    """Keeps `retain` checkpoints, None all of them. `also` removes what only pruned checkpoints needed."""

    def __init__(self, store: DurableCheckpointStore, retain: int | None, also: Callable[[], None]) -> None:
        self._store, self._retain, self._also = store, retain, also
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-housekeeping")
        self._pruning: Future[None] | None = None

    def epoch_done(self, epoch: int) -> None:
        """Prune now and then, unless it is still being done."""
        due = self._retain is not None and (epoch - 1) % max(self._retain // 2, 1) == 0
        if due and (self._pruning is None or self._pruning.done()):
            self._pruning = self._threads.submit(self._prune)

    def _prune(self) -> None:
        try:
            self._store.prune(self._retain or 0)
            self._also()
        except CheckpointStoreError as error:
            _log.warning("pruning failed, will be tried again: %s", error)

    def close(self) -> None:
        """Let what is being done finish."""
        self._threads.shutdown(wait=True)
