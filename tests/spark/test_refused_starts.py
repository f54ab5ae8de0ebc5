"""A start that is refused leaves store and targets byte for byte as they were, and the next one goes on."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import open_store
from holdfast.errors import SinkError, SourceHistoryLost
from spark.conftest import Lab, flip

Undisturbed = Callable[[str, int], dict[str, Any]]
Labs = Callable[[str], Lab]


def everything(here: Lab) -> dict[str, str]:
    """Return the digest of every file, but for caches and the history, which tells of refused starts too."""
    passing = {"work", "history", "in"}
    return {
        str(path.relative_to(here.base)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(here.base.rglob("*"))
        if path.is_file() and not passing & set(path.relative_to(here.base).parts)
    }


def checkpoint_of(here: Lab, epoch: int) -> int:
    store = open_store(here.base / "store")
    return next(manifest.checkpoint_id for manifest in store.manifests() if manifest.epoch == epoch)


def refused(here: Lab, error: type[Exception], says: str, **options: Any) -> None:
    before = everything(here)
    with pytest.raises(error, match=says):
        here.run(**options)
    assert everything(here) == before


def test_going_back_is_refused_as_a_whole_when_one_sink_cannot(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("running")
    here.add(0, 4)
    assert here.run()
    refused(here, SinkError, "cannot be rewound", from_id=checkpoint_of(here, 2))
    here.add(4, 5)
    assert here.run()
    assert here.contents() == undisturbed("running", 5)


def test_going_back_is_refused_when_what_would_be_read_again_is_gone(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 4)
    assert here.run()
    gone = here.base / "in" / "0003.json"
    hidden = gone.rename(gone.with_name("_hidden"))
    refused(here, SourceHistoryLost, r"epoch 4 read are gone.*0003\.json", from_id=checkpoint_of(here, 2))
    hidden.rename(gone)
    assert here.run(from_id=checkpoint_of(here, 2))
    assert here.contents() == undisturbed("windows", 4)


@pytest.mark.parametrize("damaged", ["manifest.json", "state.bin"])
def test_a_fall_back_is_refused_when_a_file_of_a_lost_epoch_is_gone(
    damaged: str, lab: Labs, undisturbed: Undisturbed
) -> None:
    """No sink shows anything of the epoch yet: its window is still open, in state that is lost."""
    here = lab("windows")
    here.add(0, 4)
    assert here.run()
    first = checkpoint_of(here, 4)
    for checkpoint in [path for path in here.checkpoints if int(path.name.removeprefix("checkpoint_")) >= first]:
        flip(checkpoint / damaged, 300 if damaged == "manifest.json" else -3)
    gone = here.base / "in" / "0003.json"
    hidden = gone.rename(gone.with_name("_hidden"))
    refused(here, SourceHistoryLost, r"epoch 4 read are gone.*0003\.json")
    hidden.rename(gone)
    assert here.run()
    assert here.contents() == undisturbed("windows", 4)
