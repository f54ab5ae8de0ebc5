"""The JSON of every status type, both ways, and what is refused."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast.core.status import (
    BootstrapPolicy,
    CheckpointActivity,
    CheckpointDelayed,
    CheckpointFailure,
    CheckpointIdle,
    CheckpointInProgress,
    CheckpointMetadata,
    CheckpointResponse,
    CheckpointStatus,
    CheckpointSyncFailure,
    CheckpointSyncMetrics,
    CheckpointSyncResponse,
    CheckpointSyncStatus,
    DeploymentStatus,
    PermanentSuspendError,
    RuntimeDesiredStatus,
    RuntimeStatus,
    SuspendError,
    TemporarySuspendError,
    parse_activity,
)

FIRST = UUID("0198c0de-0000-7000-8000-00000000000a")
SECOND = UUID("0198c0de-0000-7000-8000-00000000000b")
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
U64_MAX = 2**64 - 1

GOLDEN = [
    pytest.param(value, text, id=f"{type(value).__name__}-{number}")
    for number, (value, text) in enumerate(
        [
            (CheckpointStatus(), '{"success":null,"failure":null}'),
            (
                CheckpointStatus(
                    success=U64_MAX,
                    failure=CheckpointFailure(sequence_number=3, error="disk full", failed_at=NOON),
                ),
                '{"success":18446744073709551615,"failure":'
                '{"sequence_number":3,"error":"disk full","failed_at":"2026-03-01T12:00:00Z"}}',
            ),
            (CheckpointIdle(), '{"status":"idle"}'),
            (
                CheckpointDelayed(
                    reasons=(
                        TemporarySuspendError("Replaying"),
                        TemporarySuspendError("InputEndpointBarrier", "orders"),
                    ),
                    delayed_since=NOON,
                ),
                '{"status":"delayed","reasons":["Replaying",{"InputEndpointBarrier":"orders"}],'
                '"delayed_since":"2026-03-01T12:00:00Z"}',
            ),
            (
                CheckpointInProgress(started_at=NOON),
                '{"status":"in_progress","started_at":"2026-03-01T12:00:00Z"}',
            ),
            (
                CheckpointResponse(checkpoint_sequence_number=0),
                '{"checkpoint_sequence_number":0,"incarnation_uuid":null}',
            ),
            (
                CheckpointResponse(checkpoint_sequence_number=7, incarnation_uuid=FIRST),
                '{"checkpoint_sequence_number":7,"incarnation_uuid":"0198c0de-0000-7000-8000-00000000000a"}',
            ),
            (
                CheckpointSyncResponse(checkpoint_uuid=FIRST),
                '{"checkpoint_uuid":"0198c0de-0000-7000-8000-00000000000a","incarnation_uuid":null}',
            ),
            (
                CheckpointSyncResponse(checkpoint_uuid=FIRST, incarnation_uuid=SECOND),
                '{"checkpoint_uuid":"0198c0de-0000-7000-8000-00000000000a",'
                '"incarnation_uuid":"0198c0de-0000-7000-8000-00000000000b"}',
            ),
            (CheckpointSyncStatus(), '{"success":null,"failure":null,"periodic":null,"running":[]}'),
            (
                CheckpointSyncStatus(
                    success=FIRST,
                    failure=CheckpointSyncFailure(uuid=SECOND, error="no route"),
                    periodic=SECOND,
                    running=frozenset({SECOND, FIRST}),
                ),
                '{"success":"0198c0de-0000-7000-8000-00000000000a",'
                '"failure":{"uuid":"0198c0de-0000-7000-8000-00000000000b","error":"no route"},'
                '"periodic":"0198c0de-0000-7000-8000-00000000000b",'
                '"running":["0198c0de-0000-7000-8000-00000000000a","0198c0de-0000-7000-8000-00000000000b"]}',
            ),
            (
                CheckpointMetadata(uuid=FIRST, fingerprint=U64_MAX),
                '{"uuid":"0198c0de-0000-7000-8000-00000000000a","identifier":null,'
                '"fingerprint":18446744073709551615,"size":null,"steps":null,"processed_records":null}',
            ),
            (
                CheckpointMetadata(
                    uuid=FIRST, identifier="nightly", fingerprint=1, size=2, steps=3, processed_records=4
                ),
                '{"uuid":"0198c0de-0000-7000-8000-00000000000a","identifier":"nightly",'
                '"fingerprint":1,"size":2,"steps":3,"processed_records":4}',
            ),
        ]
    )
]

GOLDEN_REASONS = [
    (PermanentSuspendError("StorageRequired"), '"StorageRequired"'),
    (PermanentSuspendError("EnterpriseFeature"), '"EnterpriseFeature"'),
    (PermanentSuspendError("UnsupportedInputEndpoint", "clicks"), '{"UnsupportedInputEndpoint":"clicks"}'),
    (TemporarySuspendError("Replaying"), '"Replaying"'),
    (TemporarySuspendError("Bootstrapping"), '"Bootstrapping"'),
    (TemporarySuspendError("TransactionInProgress"), '"TransactionInProgress"'),
    (TemporarySuspendError("InputEndpointBarrier", "orders"), '{"InputEndpointBarrier":"orders"}'),
    (TemporarySuspendError("Coordination"), '"Coordination"'),
    (SuspendError("Permanent", ()), '{"Permanent":[]}'),
    (
        SuspendError("Permanent", (PermanentSuspendError("StorageRequired"),)),
        '{"Permanent":["StorageRequired"]}',
    ),
    (
        SuspendError(
            "Temporary",
            (TemporarySuspendError("Coordination"), TemporarySuspendError("InputEndpointBarrier", "orders")),
        ),
        '{"Temporary":["Coordination",{"InputEndpointBarrier":"orders"}]}',
    ),
]


class Stats(BaseModel):
    """The values the way a bigger document holds them."""

    suspend_error: SuspendError | None
    checkpoint_activity: CheckpointActivity
    permanent_checkpoint_errors: list[PermanentSuspendError] | None


def read_failure(failed_at: object) -> CheckpointFailure:
    return CheckpointFailure.model_validate({"sequence_number": 1, "error": "x", "failed_at": failed_at})


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_a_model_writes_its_exact_json(value: BaseModel, text: str) -> None:
    assert value.model_dump_json() == text


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_a_model_is_read_from_its_exact_json(value: BaseModel, text: str) -> None:
    assert type(value).model_validate_json(text) == value


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_an_unknown_key_is_ignored(value: BaseModel, text: str) -> None:
    assert type(value).model_validate_json(text[:-1] + ',"novelty":{}}') == value


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_a_model_is_frozen_and_hashable(value: BaseModel, text: str) -> None:
    assert value in {value}
    with pytest.raises(ValidationError, match="frozen"):
        setattr(value, next(iter(type(value).model_fields)), None)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (CheckpointFailure, '{"error":"x","failed_at":"2026-03-01T12:00:00Z"}'),
        (CheckpointFailure, '{"sequence_number":1,"failed_at":"2026-03-01T12:00:00Z"}'),
        (CheckpointFailure, '{"sequence_number":1,"error":"x"}'),
        (CheckpointResponse, "{}"),
        (CheckpointSyncResponse, "{}"),
        (CheckpointSyncFailure, '{"error":"x"}'),
        (CheckpointMetadata, '{"uuid":"0198c0de-0000-7000-8000-00000000000a"}'),
        (CheckpointMetadata, '{"fingerprint":1}'),
    ],
)
def test_a_missing_required_key_is_refused(model: type[BaseModel], text: str) -> None:
    with pytest.raises(ValidationError, match="Field required"):
        model.model_validate_json(text)


@pytest.mark.parametrize("number", ["1.0", "1.5", "1e3", "18446744073709551616", "-1", '"1"', "true", "null"])
def test_a_number_that_is_no_u64_is_refused(number: str) -> None:
    with pytest.raises(ValidationError, match="checkpoint_sequence_number"):
        CheckpointResponse.model_validate_json(f'{{"checkpoint_sequence_number":{number}}}')


@pytest.mark.parametrize("key", ["fingerprint", "size", "steps", "processed_records"])
@pytest.mark.parametrize("number", [1.0, 2**64, -1])
def test_every_number_of_the_metadata_is_a_u64(key: str, number: float) -> None:
    with pytest.raises(ValidationError, match=key):
        CheckpointMetadata.model_validate({"uuid": FIRST, "fingerprint": 1} | {key: number})


def test_an_upper_case_uuid_is_read_and_written_in_lower_case() -> None:
    read = CheckpointSyncResponse.model_validate_json(f'{{"checkpoint_uuid":"{str(FIRST).upper()}"}}')
    assert read.model_dump(mode="json")["checkpoint_uuid"] == str(FIRST)


def test_what_is_not_a_uuid_is_refused() -> None:
    with pytest.raises(ValidationError, match="checkpoint_uuid"):
        CheckpointSyncResponse.model_validate_json('{"checkpoint_uuid":"latest"}')


def test_a_sync_status_without_running_has_nothing_running() -> None:
    read = CheckpointSyncStatus.model_validate_json('{"success":null,"failure":null,"periodic":null}')
    assert read.running == frozenset()


def test_running_uuids_are_written_in_order_and_once() -> None:
    read = CheckpointSyncStatus.model_validate({"running": [str(SECOND), str(FIRST), str(SECOND)]})
    assert read.model_dump(mode="json")["running"] == [str(FIRST), str(SECOND)]


@pytest.mark.parametrize(
    ("microsecond", "written"),
    [
        (0, "2026-03-01T12:00:00Z"),
        (120_000, "2026-03-01T12:00:00.120Z"),
        (120_001, "2026-03-01T12:00:00.120001Z"),
    ],
)
def test_a_time_is_written_with_the_shortest_fraction(microsecond: int, written: str) -> None:
    activity = CheckpointInProgress(started_at=NOON.replace(microsecond=microsecond))
    assert activity.model_dump(mode="json")["started_at"] == written


def test_a_time_with_another_offset_becomes_utc() -> None:
    assert read_failure("2026-03-01T14:00:00+02:00").failed_at == NOON
    east = NOON.astimezone(timezone(timedelta(hours=2)))
    assert read_failure(east).model_dump(mode="json")["failed_at"] == "2026-03-01T12:00:00Z"


def test_nanoseconds_are_cut_to_microseconds() -> None:
    assert read_failure("2026-03-01T12:00:00.123456789Z").failed_at == NOON.replace(microsecond=123_456)


@pytest.mark.parametrize(
    "time",
    [
        "2026-03-01T12:00:00",
        "2026-03-01",
        "2026-13-01T12:00:00Z",
        "1772366400",
        1772366400,
        1772366400.0,
        NOON.replace(tzinfo=None),
        "0001-01-01T00:00:00+05:00",
        None,
    ],
)
def test_a_time_without_an_offset_or_that_is_none_is_refused(time: object) -> None:
    with pytest.raises(ValidationError, match="failed_at"):
        read_failure(time)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"status":"idle"}', CheckpointIdle),
        (
            '{"status":"delayed","reasons":["Coordination"],"delayed_since":"2026-03-01T12:00:00Z"}',
            CheckpointDelayed,
        ),
        ('{"status":"in_progress","started_at":"2026-03-01T12:00:00Z"}', CheckpointInProgress),
    ],
)
def test_an_activity_is_parsed_by_its_status_and_written_back(text: str, kind: type) -> None:
    activity = parse_activity(text)
    assert activity.model_dump_json() == text
    assert type(activity) is kind


@pytest.mark.parametrize(
    "text",
    [
        '{"status":"asleep"}',
        '{"status":"Idle"}',
        "{}",
        '"idle"',
        '{"status":"in_progress"}',
        '{"status":"delayed","reasons":[]}',
        '{"status":"delayed","reasons":["StorageRequired"],"delayed_since":"2026-03-01T12:00:00Z"}',
    ],
)
def test_an_activity_of_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        parse_activity(text)


@pytest.mark.parametrize(("value", "text"), GOLDEN_REASONS)
def test_an_externally_tagged_value_has_its_exact_json_both_ways(value: object, text: str) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(type(value))
    assert adapter.dump_json(value).decode() == text
    assert adapter.validate_json(text) == value
    assert hash(adapter.validate_json(text)) == hash(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TemporarySuspendError, '"StorageRequired"'),
        (TemporarySuspendError, '"replaying"'),
        (TemporarySuspendError, '{"Replaying":"orders"}'),
        (TemporarySuspendError, '{"Replaying":null}'),
        (TemporarySuspendError, '"InputEndpointBarrier"'),
        (TemporarySuspendError, '{"InputEndpointBarrier":null}'),
        (TemporarySuspendError, '{"InputEndpointBarrier":3}'),
        (TemporarySuspendError, '{"InputEndpointBarrier":"a","UnsupportedInputEndpoint":"b"}'),
        (TemporarySuspendError, "{}"),
        (TemporarySuspendError, "3"),
        (PermanentSuspendError, '"Replaying"'),
        (PermanentSuspendError, '{"InputEndpointBarrier":"orders"}'),
        (SuspendError, '{"Forever":[]}'),
        (SuspendError, '"Permanent"'),
        (SuspendError, '{"Permanent":null}'),
        (SuspendError, '{"Permanent":["Replaying"]}'),
        (SuspendError, '{"Permanent":[],"Temporary":[]}'),
        (SuspendError, "[]"),
    ],
)
def test_an_unknown_tag_or_wrong_content_is_refused(kind: type, text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(text)


def test_an_unknown_tag_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"'Sleeping'.*'Replaying', 'Bootstrapping'"):
        TypeAdapter(TemporarySuspendError).validate_json('"Sleeping"')


@pytest.mark.parametrize(
    ("kind", "name", "complaint"),
    [
        ("Sleeping", None, "unknown kind 'Sleeping'"),
        ("Replaying", "orders", "'Replaying' takes no name"),
        ("InputEndpointBarrier", None, "'InputEndpointBarrier' needs the name of an input"),
    ],
)
def test_a_reason_that_has_no_json_cannot_be_built(kind: Any, name: str | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TemporarySuspendError(kind, name)


def test_a_suspend_error_of_mixed_reasons_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="must be a PermanentSuspendError"):
        SuspendError("Permanent", (TemporarySuspendError("Replaying"),))


def test_a_suspend_error_of_unknown_kind_cannot_be_built() -> None:
    forever: Any = "Forever"
    with pytest.raises(ValueError, match="unknown kind 'Forever'"):
        SuspendError(forever, ())


@pytest.mark.parametrize("reason", [PermanentSuspendError, TemporarySuspendError])
def test_every_kind_of_reason_has_a_sentence(reason: Any) -> None:
    assert set(get_args(get_type_hints(reason)["kind"])) == set(reason._texts)


def test_a_suspend_error_reads_as_one_line() -> None:
    waiting = SuspendError(
        "Temporary",
        (
            TemporarySuspendError("TransactionInProgress"),
            TemporarySuspendError("InputEndpointBarrier", "{x}"),
        ),
    )
    assert str(waiting) == (
        "the checkpoint has to wait: a transaction is open, input '{x}' is at a point it could not resume from"
    )
    assert str(SuspendError("Permanent", ())) == "the pipeline cannot be checkpointed"


def test_a_bigger_document_holds_and_writes_the_tagged_values() -> None:
    text = (
        '{"suspend_error":{"Permanent":[{"UnsupportedInputEndpoint":"clicks"}]},'
        '"checkpoint_activity":{"status":"idle"},"permanent_checkpoint_errors":["StorageRequired"]}'
    )
    stats = Stats.model_validate_json(text)
    assert stats.permanent_checkpoint_errors == [PermanentSuspendError("StorageRequired")]
    assert stats.model_dump_json() == text
    assert Stats.model_validate(stats.model_dump()) == stats


def test_a_bigger_document_takes_ready_values() -> None:
    blocked = SuspendError("Permanent", (PermanentSuspendError("EnterpriseFeature"),))
    stats = Stats(suspend_error=blocked, checkpoint_activity=CheckpointIdle(), permanent_checkpoint_errors=None)
    assert stats.suspend_error is blocked


def test_the_tagged_values_have_a_json_schema_for_reading_and_for_writing() -> None:
    forms = TypeAdapter(PermanentSuspendError).json_schema(mode="serialization")["oneOf"]
    assert [form.get("const") for form in forms] == ["StorageRequired", "EnterpriseFeature", None]
    assert forms[2]["required"] == ["UnsupportedInputEndpoint"]
    assert Stats.model_json_schema(mode="validation")["required"] == list(Stats.model_fields)


def test_sync_metrics_are_a_frozen_record() -> None:
    metrics = CheckpointSyncMetrics(duration=timedelta(seconds=2), speed=50, bytes=100)
    assert metrics == CheckpointSyncMetrics(timedelta(seconds=2), 50, 100)
    with pytest.raises(AttributeError):
        metrics.speed = 1  # type: ignore[misc]


def test_runtime_status_has_the_known_names() -> None:
    assert [status.value for status in RuntimeStatus] == [
        "Unavailable",
        "Coordination",
        "Standby",
        "Initializing",
        "AwaitingApproval",
        "Bootstrapping",
        "Replaying",
        "Paused",
        "Running",
        "Suspended",
        "ConcurrentBootstrapping",
        "Synchronizing",
    ]


def test_only_some_states_can_be_desired() -> None:
    desired = [status.value for status in RuntimeDesiredStatus]
    assert desired == ["Unavailable", "Coordination", "Standby", "Paused", "Running", "Suspended"]
    assert set(RuntimeDesiredStatus) < set(RuntimeStatus)


def test_deployment_status_adds_the_states_without_a_process() -> None:
    assert set(DeploymentStatus) == {*RuntimeStatus, "Stopped", "Provisioning", "Stopping"}


def test_bootstrap_policies_have_snake_case_names() -> None:
    assert [policy.value for policy in BootstrapPolicy] == ["allow", "reject", "await_approval"]


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(RuntimeStatus).validate_json('"running"')
