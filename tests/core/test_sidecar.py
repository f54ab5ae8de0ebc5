"""The incremental sidecar: what is written, what is only cited, and how old sidecars become free."""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canonical_json
from holdfast.core.buffers import Buffer
from holdfast.core.frames import FRAME_HEADER_LENGTH, encode_frame
from holdfast.core.names import sidecar_name
from holdfast.core.sidecar import (
    INDEX_MAGIC,
    INDEX_VERSION,
    PROGRESS_OPERATOR,
    BuiltSidecar,
    CapturedFile,
    Location,
    Mover,
    StateCatalog,
    StateFile,
    build_sidecar,
    decode_chunk,
)
from holdfast.errors import DeserializationError

PROGRESS = b"progress record"
FIRST, SECOND = sidecar_name(1), sidecar_name(2)


def captured(path: str, data: Buffer) -> CapturedFile:
    return CapturedFile(path, memoryview(data).nbytes, hashlib.sha256(data).hexdigest(), lambda: data)


def unopenable(path: str, data: bytes) -> CapturedFile:
    def refuse() -> bytes:
        raise AssertionError(f"{path} is known and must not be read")

    return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), refuse)


def external(
    operators: Mapping[str, Iterable[CapturedFile]],
    base: StateCatalog | None = None,
    move: Mapping[StateFile, Buffer] | None = None,
) -> BuiltSidecar:
    files = {name: tuple(captured) for name, captured in operators.items()}
    return build_sidecar(PROGRESS, files, base=base, move=move, inline_threshold=0)


def joined(built: BuiltSidecar) -> bytes:
    return b"".join(bytes(chunk) for chunk in built.chunks)


def contents(files: Iterable[StateFile], sidecars: Mapping[str, bytes]) -> dict[tuple[str, str], bytes]:
    """Return what a reader finds, with every digest compared."""
    found = {}
    for file in files:
        if file.location is None:
            data = file.inline or b""
        else:
            start = file.location.offset
            data = sidecars[file.location.sidecar][start : start + file.size]
        assert hashlib.sha256(data).hexdigest() == file.sha256
        found[file.operator, file.path] = data
    return found


def decoded(built: BuiltSidecar, own_name: str) -> list[StateFile]:
    """Read the files back from the bytes and operator entries alone, as the store does."""
    files: list[StateFile] = []
    for operator, state in built.operator_states.items():
        if operator == PROGRESS_OPERATOR:
            continue
        if state.external:
            chunk = joined(built)[state.external_offset :][: state.external_length]
            files += decode_chunk(operator, chunk, own_name, state.external_offset)
        else:
            files += decode_chunk(operator, state.try_decode_inline() or b"", None, 0)
    return files


# Layout


def test_the_progress_chunk_comes_first_and_is_always_external() -> None:
    built = build_sidecar(PROGRESS, {}, inline_threshold=10**6)
    assert joined(built) == PROGRESS
    state = built.operator_states[PROGRESS_OPERATOR]
    assert (state.external, state.external_offset, state.external_length) == (True, 0, len(PROGRESS))
    assert (built.batches, built.new_bytes, built.moved_bytes) == ((), 0, 0)


def test_operator_chunks_tile_the_sidecar_without_gaps() -> None:
    built = external({"b": [captured("x", b"bbb")], "a": [captured("y", b"aaaa"), captured("x", b"a")]})
    position = 0
    for operator in [PROGRESS_OPERATOR, "a", "b"]:
        state = built.operator_states[operator]
        assert (state.external, state.external_offset) == (True, position)
        position += state.external_length
    assert position == len(joined(built))


def test_equal_states_give_equal_bytes() -> None:
    one = external({"a": [captured("x", b"1"), captured("y", b"2")], "b": [captured("z", b"3")]})
    other = external({"b": [captured("z", b"3")], "a": [captured("y", b"2"), captured("x", b"1")]})
    assert joined(one) == joined(other)
    assert one.operator_states == other.operator_states


def test_buffers_are_handed_on_and_not_copied() -> None:
    large = memoryview(bytes(1000))
    built = external({"a": [captured("x", large)]})
    assert any(chunk is large for chunk in built.chunks)


def test_a_file_of_another_size_than_announced_is_refused() -> None:
    wrong = CapturedFile("x", 5, "ab", lambda: b"four")
    for threshold in (0, 100):
        with pytest.raises(ValueError, match="x has 4 bytes, was announced with 5"):
            build_sidecar(PROGRESS, {"a": [wrong]}, inline_threshold=threshold)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=4),
        st.dictionaries(st.text(max_size=4), st.binary(max_size=30), max_size=4),
        max_size=3,
    ),
    st.integers(0, 40),
)
def test_what_was_built_is_read_back_file_for_file(operators: dict[str, dict[str, bytes]], threshold: int) -> None:
    files = {name: [captured(path, data) for path, data in content.items()] for name, content in operators.items()}
    built = build_sidecar(PROGRESS, files, inline_threshold=threshold)
    expected = {(name, path): data for name, content in operators.items() for path, data in content.items()}
    assert contents(decoded(built, FIRST), {FIRST: joined(built)}) == expected
    assert sorted(decoded(built, FIRST), key=repr) == sorted(built.catalog(FIRST).files, key=repr)


# Inline operators


def test_an_operator_up_to_the_threshold_is_inlined_with_all_its_bytes() -> None:
    files = [captured("x", b"12345"), captured("y", b"67890")]
    built = build_sidecar(PROGRESS, {"a": files}, inline_threshold=10)
    assert built.operator_states["a"].external is False
    assert (joined(built), built.batches, built.new_bytes) == (PROGRESS, (), 0)
    assert contents(decoded(built, FIRST), {}) == {("a", "x"): b"12345", ("a", "y"): b"67890"}


def test_an_operator_one_byte_over_the_threshold_is_not() -> None:
    built = build_sidecar(PROGRESS, {"a": [captured("x", b"12345")]}, inline_threshold=4)
    assert built.operator_states["a"].external is True
    assert built.new_bytes == 5


def test_an_operator_without_files_is_inlined_empty() -> None:
    built = external({"a": []})
    assert built.operator_states["a"].external is False
    assert decoded(built, FIRST) == []


def test_inlined_files_are_written_again_once_the_operator_grew() -> None:
    small = build_sidecar(PROGRESS, {"a": [captured("x", b"1")]}, inline_threshold=1)
    grown = build_sidecar(
        PROGRESS,
        {"a": [captured("x", b"1"), captured("y", b"22")]},
        base=small.catalog(FIRST),
        inline_threshold=1,
    )
    assert (grown.new_bytes, grown.batches) == (3, ())
    assert contents(grown.catalog(SECOND).files, {SECOND: joined(grown)}) == {("a", "x"): b"1", ("a", "y"): b"22"}


# Incremental


def test_only_new_bytes_are_written_and_known_ones_are_cited_unread() -> None:
    first = external({"a": [captured("x", b"old" * 100)]})
    second = external({"a": [unopenable("x", b"old" * 100), captured("y", b"new")]}, base=first.catalog(FIRST))
    assert (second.new_bytes, second.moved_bytes) == (3, 0)
    assert second.batches == (FIRST,)
    assert b"old" not in joined(second)
    sidecars = {FIRST: joined(first), SECOND: joined(second)}
    assert contents(decoded(second, SECOND), sidecars) == {("a", "x"): b"old" * 100, ("a", "y"): b"new"}


def test_a_known_file_is_found_by_content_under_any_path_and_operator() -> None:
    first = external({"a": [captured("x", b"same")]})
    second = external({"b": [unopenable("renamed", b"same")]}, base=first.catalog(FIRST))
    assert (second.new_bytes, second.batches) == (0, (FIRST,))
    assert contents(decoded(second, SECOND), {FIRST: joined(first)}) == {("b", "renamed"): b"same"}


def test_a_chain_cites_the_sidecar_where_the_bytes_stand_and_not_the_one_between() -> None:
    first = external({"a": [captured("x", b"one")]})
    second = external({"a": [unopenable("x", b"one"), captured("y", b"two")]}, base=first.catalog(FIRST))
    third = external({"a": [unopenable("x", b"one")]}, base=second.catalog(SECOND))
    assert third.batches == (FIRST,)
    assert third.catalog(sidecar_name(3)).locations() == first.catalog(FIRST).locations()


def test_bytes_that_the_base_does_not_hold_are_written_even_if_an_older_one_did() -> None:
    first = external({"a": [captured("x", b"one")]})
    second = external({"a": [captured("y", b"two")]}, base=first.catalog(FIRST))
    third = external({"a": [captured("x", b"one")]}, base=second.catalog(SECOND))
    assert (third.new_bytes, third.batches) == (3, ())


def test_the_same_content_twice_in_an_operator_is_written_once() -> None:
    built = external({"a": [captured("x", b"same"), captured("y", b"same"), captured("z", b"else")]})
    assert built.new_bytes == 8
    assert joined(built).count(b"same") == 1
    assert contents(decoded(built, FIRST), {FIRST: joined(built)}) == {
        ("a", "x"): b"same",
        ("a", "y"): b"same",
        ("a", "z"): b"else",
    }


def test_moved_files_are_written_again_and_leave_their_sidecar() -> None:
    first = external({"a": [captured("x", b"stays"), captured("y", b"moves")]})
    (moving,) = [file for file in first.catalog(FIRST).files if file.path == "y"]
    second = external(
        {"a": [unopenable("x", b"stays"), unopenable("y", b"moves"), captured("z", b"new")]},
        base=first.catalog(FIRST),
        move={moving: b"moves"},
    )
    assert (second.new_bytes, second.moved_bytes, second.batches) == (3, 5, (FIRST,))
    sidecars = {FIRST: joined(first), SECOND: joined(second)}
    assert contents(decoded(second, SECOND), sidecars)["a", "y"] == b"moves"
    assert {f.path: f.location.sidecar for f in second.catalog(SECOND).files if f.location} == {
        "x": FIRST,
        "y": SECOND,
        "z": SECOND,
    }


def test_a_sidecar_whose_files_all_moved_is_no_longer_cited() -> None:
    first = external({"a": [captured("x", b"all")]})
    move = dict.fromkeys(first.catalog(FIRST).files, b"all")
    second = external({"a": [unopenable("x", b"all")]}, base=first.catalog(FIRST), move=move)
    assert (second.moved_bytes, second.batches) == (3, ())


def test_the_catalog_gives_the_new_bytes_the_name_the_store_chose() -> None:
    built = external({"a": [captured("x", b"1")]})
    for name in (SECOND, sidecar_name(2, "0a1b")):
        assert set(built.catalog(name).live_bytes()) == {name}


def test_live_bytes_count_what_is_still_used_of_each_sidecar() -> None:
    first = external({"a": [captured("x", b"12345"), captured("y", b"123")]})
    second = external({"a": [captured("x", b"12345"), captured("z", b"1")]}, base=first.catalog(FIRST))
    assert first.catalog(FIRST).live_bytes() == {FIRST: 8}
    assert second.catalog(SECOND).live_bytes() == {FIRST: 5, SECOND: 1}


# Damage


def chunk_of(built: BuiltSidecar, operator: str) -> bytes:
    state = built.operator_states[operator]
    return joined(built)[state.external_offset :][: state.external_length]


def test_every_flipped_bit_of_an_index_is_detected() -> None:
    chunk = chunk_of(external({"a": [captured("x", b"1"), captured("y", b"22")]}), "a")
    index_length = len(chunk) - 3
    for position in range(index_length):
        for bit in range(8):
            damaged = bytearray(chunk)
            damaged[position] ^= 1 << bit
            with pytest.raises(DeserializationError):
                decode_chunk("a", damaged, FIRST, 0)


def test_every_truncation_of_an_index_is_detected_and_the_bytes_behind_it_are_not_needed() -> None:
    chunk = chunk_of(external({"a": [captured("x", b"1")]}), "a")
    index_length = len(chunk) - 1
    assert decode_chunk("a", chunk[:index_length], FIRST, 7) == decode_chunk("a", chunk, FIRST, 7)
    for kept in range(index_length):
        with pytest.raises(DeserializationError):
            decode_chunk("a", chunk[:kept], FIRST, 7)


def test_an_index_of_a_later_version_is_refused() -> None:
    with pytest.raises(DeserializationError, match="sidecar index version 2 is not known"):
        decode_chunk("a", encode_frame(INDEX_MAGIC, INDEX_VERSION + 1, b"{}"), FIRST, 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"files": 1}',
        b'{"files": [1]}',
        b'{"files": [["x"]]}',
        b'{"files": [["x", "one", "ab", null, 0]]}',
        b'{"files": [["x", 1, "ab", null, 0.5]]}',
        b'{"files": [{"path": "x"}]}',
    ],
)
def test_an_intact_frame_that_is_no_index_is_refused(payload: bytes) -> None:
    with pytest.raises(DeserializationError) as caught:
        decode_chunk("a", encode_frame(INDEX_MAGIC, INDEX_VERSION, payload), FIRST, 0)
    assert caught.value.position == FRAME_HEADER_LENGTH


def test_the_index_is_canonical_json_in_a_frame() -> None:
    built = external({"a": [captured("x", b"1")]})
    digest = hashlib.sha256(b"1").hexdigest()
    payload = canonical_json.compact({"files": [["x", 1, digest, None, 0]]})
    assert chunk_of(built, "a") == encode_frame(INDEX_MAGIC, INDEX_VERSION, payload) + b"1"


# Moving


def standing(sidecar: str, *sizes: int) -> list[StateFile]:
    return [
        StateFile("op", f"{sidecar}/{n}", size, f"{sidecar}-{n}", Location(sidecar, n * 1000))
        for n, size in enumerate(sizes)
    ]


def choose(mover: Mover, files: list[StateFile], sizes: Mapping[str, int], new_bytes: int) -> list[tuple[str, int]]:
    live = StateCatalog(tuple(files)).live_bytes()
    return [
        (file.location.sidecar, file.size) for file in mover.choose(files, live, sizes, new_bytes) if file.location
    ]


def test_nothing_moves_without_live_files() -> None:
    assert Mover().choose([], {}, {}, 1000) == []


def test_bytes_leave_the_emptiest_sidecar_first() -> None:
    files = standing(FIRST, 40) + standing(SECOND, 10)
    assert choose(Mover(), files, {FIRST: 100, SECOND: 100}, 1000) == [(SECOND, 10)]


def test_bytes_stay_while_sidecars_are_at_least_half_full_and_young() -> None:
    files = standing(FIRST, 50) + standing(SECOND, 100)
    assert choose(Mover(), files, {FIRST: 100, SECOND: 100}, 1000) == []


def test_bytes_leave_the_oldest_sidecar_once_it_is_as_old_as_the_chain_may_be() -> None:
    for age, moved in [(31, []), (32, [(FIRST, 100)]), (33, [(FIRST, 100)])]:
        newest = sidecar_name(1 + age)
        files = standing(FIRST, 100) + standing(newest, 100)
        assert choose(Mover(chain_length=32), files, {FIRST: 100, newest: 100}, 1000) == moved


def test_age_is_counted_from_the_newest_sidecar_even_if_nothing_in_it_stays_alive() -> None:
    sizes = {FIRST: 100, sidecar_name(33): 100}
    assert choose(Mover(chain_length=32), standing(FIRST, 100), sizes, 1000) == [(FIRST, 100)]


def test_an_old_sidecar_is_not_starved_by_emptier_young_ones() -> None:
    files = standing(FIRST, 90) + standing(sidecar_name(40), 1)
    assert choose(Mover(chain_length=32), files, {FIRST: 100, sidecar_name(40): 100}, 1000) == [(FIRST, 90)]


def test_small_files_move_first_and_only_as_far_as_credit_reaches() -> None:
    mover = Mover()
    files = standing(FIRST, 30, 10, 20)
    assert choose(mover, files, {FIRST: 1000}, 35) == [(FIRST, 10), (FIRST, 20)]
    assert choose(mover, files[:1], {FIRST: 1000}, 24) == []
    assert choose(mover, files[:1], {FIRST: 1000}, 1) == [(FIRST, 30)]


def test_credit_is_saved_up_to_the_limit_and_no_further() -> None:
    mover = Mover(limit_bytes=50)
    full = standing(FIRST, 100)
    for _ in range(10):
        assert choose(mover, full, {FIRST: 100}, 40) == []
    assert choose(mover, standing(FIRST, 30, 30), {FIRST: 1000}, 0) == [(FIRST, 30)]


def test_a_file_larger_than_the_limit_moves_when_enough_was_saved_for_it() -> None:
    mover = Mover(limit_bytes=50)
    large = standing(FIRST, 200)
    moves = [choose(mover, large, {FIRST: 1000}, 40) for _ in range(5)]
    assert moves == [[], [], [], [], [(FIRST, 200)]]


def test_content_that_stands_once_moves_once_however_many_files_have_it() -> None:
    (file,) = standing(FIRST, 10)
    copies = [file, StateFile("op", "copy", file.size, file.sha256, file.location)]
    assert choose(Mover(), copies, {FIRST: 1000}, 100) == [(FIRST, 10)]


def test_inline_files_never_move() -> None:
    inline = StateFile("op", "x", 3, "ab", None, b"abc")
    assert Mover().choose([inline], {FIRST: 1}, {FIRST: 100}, 100) == []


@dataclass
class Simulation:
    """A long run: files change, each checkpoint is built on the one before, unneeded sidecars go."""

    sizes: Mapping[str, int]
    mover: Mover
    sidecars: dict[str, bytes] = field(default_factory=dict)
    needed: list[frozenset[str]] = field(default_factory=list)
    new_bytes: int = 0
    moved_bytes: int = 0
    largest_move: int = 0
    catalog: StateCatalog = field(default_factory=StateCatalog)
    versions: dict[str, int] = field(default_factory=dict)

    def checkpoint(self, changed: Iterable[str]) -> None:
        """Build and read back the next checkpoint, in which the files `changed` have new content."""
        id = len(self.needed) + 1
        self.versions = {path: self.versions.get(path, 1) for path in self.sizes} | dict.fromkeys(changed, id)
        files = [captured(path, self._content(path)) for path in self.sizes]
        built = external({"op": files}, self.catalog, self._moves(files))
        name = sidecar_name(id)
        self.sidecars[name] = joined(built)
        self.catalog = built.catalog(name)
        assert contents(self.catalog.files, self.sidecars) == {
            ("op", path): self._content(path) for path in self.sizes
        }
        self.needed.append(frozenset(built.batches) | {name})
        self.sidecars = {name: data for name, data in self.sidecars.items() if name in self.needed[-1]}
        self.new_bytes += built.new_bytes
        self.moved_bytes += built.moved_bytes
        self.largest_move = max(self.largest_move, built.moved_bytes)

    def _content(self, path: str) -> bytes:
        unit = f"{path}@{self.versions[path]};".encode()
        return (unit * self.sizes[path])[: self.sizes[path]]

    def _moves(self, files: Iterable[CapturedFile]) -> dict[StateFile, Buffer]:
        wanted = {(file.sha256, file.size) for file in files}
        alive = StateCatalog(tuple(f for f in self.catalog.files if (f.sha256, f.size) in wanted))
        new_bytes = sum(size for digest, size in wanted if (digest, size) not in alive.locations())
        sizes = {name: len(data) for name, data in self.sidecars.items()}
        chosen = self.mover.choose(alive.files, alive.live_bytes(), sizes, new_bytes)
        return {f: self.sidecars[f.location.sidecar][f.location.offset :][: f.size] for f in chosen if f.location}


Workload = Callable[[random.Random, list[str]], Iterable[str]]
WORKLOADS: dict[str, tuple[dict[str, int], Workload]] = {
    "files change at random": (
        {f"f{n}": 200 + n for n in range(40)},
        lambda seeded, paths: seeded.sample(paths, 3),
    ),
    "most files never change": (
        {**{f"cold{n}": 300 for n in range(30)}, **{f"hot{n}": 300 for n in range(10)}},
        lambda seeded, paths: seeded.sample([path for path in paths if path.startswith("hot")], 4),
    ),
    "one cold file is larger than the limit": (
        {"large": 9000, **{f"hot{n}": 300 for n in range(10)}},
        lambda seeded, paths: seeded.sample([path for path in paths if path.startswith("hot")], 4),
    ),
    "all that changes is small and changes every time": (
        {**{f"cold{n}": 300 for n in range(40)}, "hot": 150},
        lambda seeded, paths: ["hot"],
    ),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_long_run_writes_at_most_twice_and_lets_go_of_every_old_sidecar(name: str) -> None:
    sizes, workload = WORKLOADS[name]
    limit = 4000
    run = Simulation(sizes, Mover(limit_bytes=limit, chain_length=8))
    seeded = random.Random(7)
    for step in range(250):
        run.checkpoint(workload(seeded, list(sizes)) if step else ())
        assert run.moved_bytes <= run.new_bytes
    assert run.largest_move <= max(limit, *sizes.values())
    assert (run.new_bytes + run.moved_bytes) / run.new_bytes <= 2
    assert run.needed[-1].isdisjoint(run.needed[99])


def test_unchanged_state_writes_no_state_bytes_again() -> None:
    run = Simulation({"x": 500, "y": 500}, Mover(chain_length=1))
    for _ in range(5):
        run.checkpoint(())
    assert run.new_bytes == 1000


def test_equal_files_do_not_make_a_sidecar_look_empty() -> None:
    files = [captured(f"part-{n}", b"equal content of all partitions" * 20) for n in range(50)]
    first = external({"op": files})
    catalog = first.catalog(FIRST)
    sizes = {FIRST: sum(catalog.live_bytes().values())}
    assert first.new_bytes == sizes[FIRST] == 620
    assert Mover().choose(catalog.files, catalog.live_bytes(), sizes, 1000) == []
