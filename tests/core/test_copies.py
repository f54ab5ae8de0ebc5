"""A manifest made from another one shares nothing with it that can change: what was read stays what was read."""

from holdfast import OperatorCheckpoint
from holdfast.core.planning import merge_update
from stores.builders import PENDING, manifest


def test_an_update_leaves_the_manifest_alone_that_it_was_made_of() -> None:
    """Goal: a caller who goes on with the merged one cannot falsify the one that is compared with the store."""
    fields = {"abandons": [3], "sink_commit_statuses": {"a": PENDING}, "sink_epochs": {"a": 4}}
    current = manifest(9, operator_states={"count": OperatorCheckpoint.external(0, 7)}, **fields)
    before = current.to_json()
    merged = merge_update(current, current)
    merged.abandons.append(4)
    merged.operator_states.clear()
    merged.sink_commit_statuses.clear()
    merged.sink_epochs["a"] = 5
    assert current.to_json() == before
