"""Stores and pipelines without Spark behind the real server, for pages to look at."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.requests import CheckpointRequests
from holdfast.interfaces.control import ControlError, DirectoryEntry
from holdfast.interfaces.http.addresses import Address, listen
from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.local import LocalPipeline, OnePipeline
from holdfast.interfaces.service import CheckpointService
from holdfast.stores.store import DurableCheckpointStore
from page.story import Story

GENEROUS = Security(requests_per_second=10_000)


class Stores:
    """A directory of stores that are only looked at."""

    def __init__(self, stores: Mapping[str, DurableCheckpointStore]) -> None:
        self._stores = stores

    def names(self) -> Sequence[str]:
        return sorted(self._stores)

    def find(self, name: str) -> DirectoryEntry:
        if name not in self._stores:
            raise ControlError.unknown_pipeline(name)
        return DirectoryEntry(name, store=CheckpointService(self._stores[name]))

    def only(self) -> DirectoryEntry:
        return self.find(self.names()[0])


@contextlib.contextmanager
def serving_stores(**stores: DurableCheckpointStore) -> Iterator[str]:
    """Serve stores without pipelines; yields the URL."""
    with HttpServer(create_app(Stores(stores), GENEROUS), listen(Address("127.0.0.1", 0))) as server:
        yield server.url


class Telling:
    """A running pipeline whose epochs are told by a story."""

    paused, sync = False, None

    def __init__(self, story: Story) -> None:
        self._story = story

    @property
    def newest(self) -> CheckpointManifest:
        return self._story.newest

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


@contextlib.contextmanager
def serving_story(story: Story) -> Iterator[tuple[str, LocalPipeline]]:
    """Serve a story as a pipeline that runs; what it tells from now on reaches the page as events."""
    local = LocalPipeline(story.name, CheckpointRequests(), lambda force: None)
    local.opened(story.store)
    local.started(Telling(story))
    with HttpServer(create_app(OnePipeline(local), GENEROUS), listen(Address("127.0.0.1", 0))) as server:
        yield server.url, local
