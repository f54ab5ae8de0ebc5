"""Goal: on an S3 service that fails, copies are made sooner or later, and no start takes a failure for emptiness.

The service is moto's server behind a proxy: 503 and 403 are answered, connections hang, break or are refused.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.worlds import PARTITIONS
from holdfast import StoreConfigurationError, TransientStoreError
from holdfast.engine.sync.link import SyncLink
from holdfast.engine.sync.notes import SyncNotes
from holdfast.engine.sync.push import newest_settled
from holdfast.engine.sync.settings import SyncSettings
from holdfast.engine.sync.sides import Side, bucket_side
from holdfast.stores.urls import open_store
from marks import long
from stores.places import BUCKET, S3_OPTIONS
from sync.chains import chain_in
from sync.fault_proxy import FaultProxy
from sync.machines import Fleet, Machine, Requests, Silent, running

PATIENT = {"allow_http": "true", "timeout": "60s", "max_retries": "2", "retry_timeout": "20"}
IMPATIENT = {**PATIENT, "timeout": "1500ms"}
"""For requests that never answer."""
FAULTS = ("503", "cut", "refuse", "hang", "403")


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with FaultProxy(s3_endpoint).running() as proxy:
        yield proxy


class S3Fleet(Fleet):
    """Machines whose bucket is on an S3 server."""

    def __init__(self, base: Path, proxy: FaultProxy, endpoint: str) -> None:
        super().__init__(base)
        self.proxy, self.endpoint, self.options = proxy, endpoint, PATIENT
        self.url = f"s3://{BUCKET}/sync/{uuid.uuid4().hex}"

    def machine(self, **changes: Any) -> "S3Machine":
        return S3Machine(self, f"machine{uuid.uuid4().hex}", SyncSettings(self.url, **changes))

    def bucket(self, requests: Requests | None = None) -> Side:
        return self.side(self.endpoint)

    def side(self, endpoint: str) -> Side:
        return bucket_side(self.url, {**S3_OPTIONS, **self.options, "endpoint": endpoint}, PARTITIONS)


class S3Machine(Machine):
    """A machine that reaches the bucket through the proxy."""

    fleet: S3Fleet

    def link(self, observer: Any = None) -> SyncLink:
        local = self.side()
        SyncNotes(local.store).marked()
        bucket = self.fleet.side(self.fleet.proxy.endpoint)
        return SyncLink(self.settings, local, bucket, None, "shop", observer or Silent(), self.clock)


@pytest.fixture
def fleet(tmp_path: Path, proxy: FaultProxy, s3_endpoint: str) -> S3Fleet:
    return S3Fleet(tmp_path, proxy, s3_endpoint)


@pytest.fixture
def machine(fleet: S3Fleet) -> S3Machine:
    """Return a machine that ran four epochs; only its start is in the bucket."""
    machine = fleet.machine()
    machine.run()
    return machine


def whole(fleet: S3Fleet) -> list[int]:
    store = fleet.bucket().store
    return [id for id in store.list_ids() if store.validate_checkpoint(id).valid]


def test_push_and_pull_over_http(fleet: S3Fleet, machine: S3Machine) -> None:
    machine.side().materials.put(f"{machine.newest().timeline}/sources/script/begin.json", b"{}")
    machine.push()
    assert whole(fleet) == [machine.newest().checkpoint_id]
    second = fleet.machine()
    process = second.run()
    assert process.started.epoch == 4
    assert second.side().materials.names() == machine.side().materials.names()


@pytest.mark.parametrize("fault", ["503", "refuse"])
def test_a_few_failing_requests_are_survived_without_a_word(fleet: S3Fleet, machine: S3Machine, fault: str) -> None:
    fleet.proxy.first(2, fault)
    machine.push()
    assert whole(fleet) == [machine.newest().checkpoint_id]


@pytest.mark.parametrize(
    ("what", "fault"), [("PUT", "503"), ("PUT", "refuse"), ("PUT", "hang"), ("GET", "503"), ("GET", "cut")]
)
def test_a_service_that_keeps_failing_fails_the_push_and_the_next_one_goes_on(
    fleet: S3Fleet, machine: S3Machine, fault: str, what: str
) -> None:
    fleet.options = IMPATIENT
    fleet.proxy.fault = lambda method, path: fault if method == what and "checkpoints/" in path else None
    with pytest.raises(TransientStoreError):
        machine.push()
    assert whole(fleet) == []
    fleet.proxy.always(None)
    machine.push()
    assert whole(fleet) == [machine.newest().checkpoint_id]


def test_wrong_credentials_are_named_as_such(fleet: S3Fleet, machine: S3Machine) -> None:
    fleet.proxy.always("403")
    with pytest.raises(StoreConfigurationError, match="InvalidAccessKeyId"):
        machine.push()


@pytest.mark.parametrize(
    ("empty", "fault"),
    [
        *((True, fault) for fault in FAULTS),
        (False, "503"),
        *long(*((False, fault) for fault in FAULTS if fault != "503")),
    ],
)
def test_no_fault_makes_a_start_begin_afresh(fleet: S3Fleet, fault: str, empty: bool) -> None:
    machine = fleet.machine()
    with running(machine) as process:
        process.next_epoch()
    machine.push()
    machine = fleet.machine() if empty else machine
    ids = machine.store().list_ids()
    fleet.options = IMPATIENT
    fleet.proxy.always(fault)
    with pytest.raises((TransientStoreError, StoreConfigurationError)):
        machine.run()
    assert machine.store().list_ids() == ids
    fleet.proxy.always(None)
    fleet.options = PATIENT
    machine.run()
    assert fleet.right()


@pytest.mark.parametrize("fault", ["refuse", "hang", *long("503")])
def test_a_machine_that_is_cut_off_stops_before_its_sinks_commit_and_another_goes_on(
    fleet: S3Fleet, fault: str
) -> None:
    first = fleet.machine(standby=True)
    fleet.options = IMPATIENT
    with running(first) as process:
        process.next_epoch()
        first.push()
        fleet.proxy.fault = lambda method, path: fault if "manifests/" in path or "checkpoints/" in path else None
        shown = fleet.world.shown()
        with pytest.raises(TransientStoreError, match="its sinks do not commit"):
            process.next_epoch()
        assert fleet.world.shown() == shown
    fleet.proxy.always(None)
    fleet.options = PATIENT
    fleet.machine(standby=True).run()
    assert fleet.right()


def test_a_prune_beside_a_push_loses_nothing(fleet: S3Fleet, machine: S3Machine) -> None:
    """Everything that could be pruned there and here is, each time a sidecar has been copied."""
    pruned: list[int] = []

    def prune(method: str, path: str) -> None:
        if method == "PUT" and "checkpoints/" in path:
            pruned.append(fleet.bucket().store.prune(1))
            machine.store().prune(1)

    fleet.proxy.fault = prune
    machine.push()
    assert pruned
    assert machine.newest().checkpoint_id in whole(fleet)
    fleet.machine().run()
    assert fleet.right()


def test_no_secret_is_in_what_goes_wrong(fleet: S3Fleet, machine: S3Machine) -> None:
    for fault in ("403", "503"):
        fleet.proxy.always(fault)
        with pytest.raises((TransientStoreError, StoreConfigurationError)) as caught:
            machine.push()
        assert "testing" not in str(caught.value)
        assert "testing" not in repr(machine.settings)


def bytes_put(proxy: FaultProxy, part: str) -> tuple[int, int]:
    """Return how many objects were put whose name has a part, and their bytes."""
    puts = [size for method, path, size in proxy.requests if method == "PUT" and part in path]
    return len(puts), sum(puts)


@pytest.mark.long
def test_a_push_of_a_long_chain_sends_only_what_changed(fleet: S3Fleet, tmp_path: Path) -> None:
    """Counted by the proxy, in requests and bytes: the chain has a large base, and each epoch adds a little."""
    store = open_store(tmp_path / "chain", retain=None, vnode_count=PARTITIONS)
    seal = chain_in(store, base_bytes=24 << 20, epoch_bytes=256 << 10)
    machine = fleet.machine()
    machine.store = lambda *rest, **options: store  # type: ignore[method-assign]
    seal()
    machine.push()
    for _ in range(5):
        before = set(fleet.bucket().store.sidecars())
        sealed = seal()
        fleet.proxy.requests.clear()
        copied = machine.push()
        new = {name: size for name, size in fleet.bucket().store.sidecars().items() if name not in before}
        assert list(new) == [sealed.sidecar]
        assert bytes_put(fleet.proxy, "checkpoints/") == (1, sum(new.values()))
        assert bytes_put(fleet.proxy, "manifests/manifest")[0] == 1
        assert (copied.objects, copied.bytes) == (2, sum(new.values()))
        assert 256 << 10 <= copied.bytes < 300 << 10
    assert newest_settled(store) is not None
    assert fleet.bucket().store.validate_checkpoint(store.newest_id()).valid
