"""The filesystem store against the bare disk (`make bench-store`).

Each figure is a ratio to the least that could be done: writing, flushing and hashing the same bytes in the same
directory, in the same run, alternating. Reading is measured with the bytes in the page cache on both sides, so
the disk hides nothing.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from measuring import Comparison, Target, Timing, compare, machine_facts, time_calls

from holdfast import CheckpointManifest, ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus, open_store
from holdfast.clock import new_uuid
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.names import checkpoint_name
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile, StateCatalog, build_sidecar
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
from holdfast.stores.store import DurableCheckpointStore

KB, MB, GB = 10**3, 10**6, 10**9
PIECE = 4 * 1024 * 1024
WRITE_TARGET = READ_TARGET = Target(1.2)
SMALL_TARGET = Target(0.5, at_most=False)
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Plan:
    """How much to measure: bytes and pairs for each size, and how many checkpoints to list."""

    sizes: tuple[tuple[int, int], ...] = ((KB, 300), (MB, 100), (100 * MB, 21), (GB, 15))
    small_saves: int = 500
    listed: tuple[int, ...] = (10, 1_000, 10_000)
    listings: int = 50
    chain: tuple[int, int] = (10, 200)
    """How many sidecars the incremental checkpoint rests on, and how many files of 50 KB each holds."""


QUICK = Plan(sizes=((KB, 10), (64 * KB, 10), (MB, 5)), small_saves=20, listed=(10, 100), listings=5, chain=(3, 10))


@dataclass
class Bench:
    """A directory to work in, a seeded generator, and what was measured so far."""

    directory: Path
    plan: Plan
    generator: random.Random
    comparisons: list[Comparison] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)

    def run(self) -> None:
        """Measure everything."""
        for size, pairs in self.plan.sizes:
            data = self.random_pieces(size)
            self.measure_saving(size, data, pairs)
            self.measure_verifying(size, data, pairs)
        self.measure_small_saves()
        self.measure_chain()
        self.measure_retention()
        for count in self.plan.listed:
            self.measure_listing(count)

    def random_pieces(self, size: int) -> list[bytes]:
        """Return `size` bytes that nothing can compress, in the pieces a caller would hand over."""
        return [self.generator.randbytes(min(PIECE, size - start)) for start in range(0, size, PIECE)]

    def measure_saving(self, size: int, data: list[bytes], pairs: int) -> None:
        """Compare `save_with_state` to one durable, hashed file of the same bytes."""
        with self.fresh("save") as directory:
            store = open_store(directory / "store", retain=None)
            bare = directory / "bare"
            bare.mkdir()
            ids, names = itertools.count(1), itertools.count(1)

            def settle() -> None:
                """Let neither side pay for the other's dirty pages, nor the disk fill up."""
                if size >= MB:
                    for old in [*bare.iterdir(), *(directory / "store/checkpoints").glob("checkpoint_*/state.bin")]:
                        old.unlink()
                    os.sync()

            self.comparisons.append(
                compare(
                    f"save_with_state {shown(size)}",
                    lambda: store.save_with_state(manifest_with_sidecar(next(ids), size), data),
                    lambda: create_durably(bare / str(next(names)), data, hashed=True),
                    pairs=pairs,
                    generator=self.generator,
                    between=settle,
                    target=WRITE_TARGET if size >= 100 * MB else None,
                )
            )

    def measure_verifying(self, size: int, data: list[bytes], pairs: int) -> None:
        """Compare load + validate to reading and hashing the sidecar, both from the page cache."""
        with self.fresh("verify") as directory:
            store = open_store(directory, retain=None)
            store.save_with_state(manifest_with_sidecar(1, size), data)
            sidecar = directory / "checkpoints" / checkpoint_name(1) / "state.bin"
            self.comparisons.append(
                compare(
                    f"load + verify {shown(size)}",
                    lambda: load_and_verify(store, 1),
                    lambda: read_and_hash([sidecar]),
                    pairs=pairs,
                    generator=self.generator,
                    target=READ_TARGET,
                )
            )

    def measure_small_saves(self) -> None:
        """Compare the rate of small saves to that of two bare durable file creations."""
        state = self.random_pieces(KB)
        for retain in (None, 10):
            with self.fresh("small") as directory:
                store = open_store(directory / "store", retain=retain)
                bare = directory / "bare"
                bare.mkdir()
                ids, names = itertools.count(1), itertools.count(1)
                document = manifest_with_sidecar(1, KB).to_json().encode()

                def two_files(names: Iterator[int] = names, bare: Path = bare, document: bytes = document) -> None:
                    create_durably(bare / f"{next(names)}.bin", state)
                    create_durably(bare / f"{next(names)}.json", [document])

                def save(ids: Iterator[int] = ids, store: DurableCheckpointStore = store) -> None:
                    store.save_with_state(manifest_with_sidecar(next(ids), KB), state)

                self.comparisons.append(
                    compare(
                        f"small saves per second, retain={retain}",
                        save,
                        two_files,
                        pairs=self.plan.small_saves,
                        generator=self.generator,
                        rates=True,
                        target=SMALL_TARGET,
                    )
                )

    def measure_chain(self) -> None:
        """Compare load + verify of a checkpoint that rests on many sidecars to reading and hashing them."""
        sidecars, files = self.plan.chain
        with self.fresh("chain") as directory:
            store = open_store(directory, retain=None)
            self.build_chain(store, sidecars, files)
            paths = sorted((directory / "checkpoints").glob("checkpoint_*/state.bin"))
            self.comparisons.append(
                compare(
                    f"load + verify {sidecars * files} files in {sidecars} sidecars",
                    lambda: load_and_verify(store, sidecars),
                    lambda: read_and_hash(paths),
                    pairs=20,
                    generator=self.generator,
                    target=READ_TARGET,
                )
            )

    def measure_retention(self) -> None:
        """Time what every save pays for retention once a store is full: a survey that finds nothing to remove."""
        sidecars, files = self.plan.chain
        with self.fresh("retention") as directory:
            store = open_store(directory, retain=None)
            self.build_chain(store, sidecars, files)
            name = f"prune({sidecars}) of {sidecars} checkpoints with up to {sidecars * files} files"
            self.timings.append(time_calls(name, lambda: store.prune(sidecars), 10))

    def build_chain(self, store: DurableCheckpointStore, sidecars: int, files: int) -> None:
        """Save checkpoints that each add `files` files of 50 KB and cite all earlier ones."""
        catalog, captured, timeline = StateCatalog(), [], new_uuid()
        for id in range(1, sidecars + 1):
            captured += [self.random_file(f"{id}/{n}.delta") for n in range(files)]
            progress = ProgressRecord(timeline, checkpoint_id=id, epoch=id, generation=1).to_bytes()
            built = build_sidecar(progress, {"counts": captured}, base=catalog)
            manifest = CheckpointManifest.new(id, id)
            manifest.operator_states = built.operator_states
            manifest.dependencies = CheckpointDependencies(batches=built.batches)
            sealed = store.save_with_state(manifest, built.chunks)
            assert sealed.sidecar is not None
            catalog = built.catalog(sealed.sidecar)

    def random_file(self, path: str) -> CapturedFile:
        """Return one state file of 50 KB."""
        data = self.generator.randbytes(50 * KB)
        return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), lambda: data)

    def measure_listing(self, count: int) -> None:
        """Time the questions a starting process asks, with many checkpoints there."""
        with self.fresh("list") as directory:
            fill(directory, count)
            store = open_store(directory, retain=None)
            root = directory / "checkpoints"
            self.comparisons.append(
                compare(
                    f"list_ids of {count:,} against os.scandir",
                    store.list_ids,
                    lambda: scan(root),
                    pairs=self.plan.listings,
                    generator=self.generator,
                )
            )
            calls: dict[str, Callable[[], object]] = {
                "newest_id": store.newest_id,
                "load_latest": store.load_latest,
            }
            for name, call in calls.items():
                self.timings.append(time_calls(f"{name}, {count:,} checkpoints", call, self.plan.listings))

    @contextmanager
    def fresh(self, name: str) -> Iterator[Path]:
        """Lend an empty directory."""
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))
        try:
            yield directory
        finally:
            shutil.rmtree(directory)


def manifest_with_sidecar(checkpoint_id: int, size: int) -> CheckpointManifest:
    """Return the manifest of a small pipeline whose one operator fills the sidecar."""
    manifest = CheckpointManifest.new(checkpoint_id, checkpoint_id)
    offsets = {f"orders-{partition}": str(checkpoint_id * 1000) for partition in range(8)}
    manifest.source_offsets = {"orders": ConnectorCheckpoint.with_offsets(checkpoint_id, offsets)}
    manifest.sink_epochs = {"lake": checkpoint_id - 1, "totals": checkpoint_id - 1}
    manifest.sink_commit_statuses = dict.fromkeys(manifest.sink_epochs, SinkCommitStatus.PENDING)
    manifest.source_names, manifest.sink_names = ["orders"], ["lake", "totals"]
    manifest.operator_states = {"counts": OperatorCheckpoint.external(0, size)}
    return manifest


def create_durably(path: Path, pieces: Sequence[bytes], *, hashed: bool = False) -> None:
    """Do the least that makes a file appear whole and stay: temporary, write, fsync, rename, directory fsync."""
    digest = hashlib.sha256()
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    for piece in pieces:
        if hashed:
            digest.update(piece)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
    os.close(descriptor)
    os.rename(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def read_and_hash(paths: Sequence[Path]) -> str:
    """Do the least that looks at every byte: one buffer, read into and hashed again and again."""
    digest, buffer = hashlib.sha256(), bytearray(1024 * 1024)
    view = memoryview(buffer)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while length := file.readinto(buffer):
                digest.update(view[:length])
    return digest.hexdigest()


def load_and_verify(store: DurableCheckpointStore, checkpoint_id: int) -> None:
    """Load a manifest and read everything it depends on; a benchmark of failures would be worth nothing."""
    manifest = store.load_by_id(checkpoint_id)
    verdict = store.validate_checkpoint(checkpoint_id)
    assert manifest is not None
    assert verdict.valid, verdict.reason


class UnflushedDisk(LocalDisk):
    """A disk that forgets to flush, to fill a store quickly."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


def fill(directory: Path, count: int) -> None:
    """Put many checkpoints into a store, by the store's own code."""
    medium = DirectoryMedium(str(directory), UnflushedDisk())
    medium.prepare()
    store = DurableCheckpointStore(medium, retain=None)
    for id in range(1, count + 1):
        store.save(manifest_without_state(id))


def manifest_without_state(checkpoint_id: int) -> CheckpointManifest:
    """Return a manifest with a little inline state and no sidecar."""
    manifest = manifest_with_sidecar(checkpoint_id, KB)
    manifest.operator_states = {"counts": OperatorCheckpoint.inline(b"x" * 100)}
    return manifest


def scan(directory: Path) -> list[str]:
    """List a directory."""
    with os.scandir(directory) as found:
        return sorted(entry.name for entry in found)


def shown(size: int) -> str:
    """Return a size the way people say it."""
    for unit, name in ((GB, "GB"), (MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def table(comparisons: list[Comparison], timings: list[Timing]) -> str:
    """Return the results as Markdown, to be read on a terminal or pasted into a page."""
    lines = ["| what | store | floor | ratio | 95 % interval | pairs | target |", "|---|--:|--:|--:|--:|--:|---|"]
    for c in comparisons:
        verdict = "" if c.target is None else f"{c.target}: {c.verdict}"
        interval = f"{c.ratio_low:.2f} - {c.ratio_high:.2f}"
        store, floor = milliseconds(c.store_seconds), milliseconds(c.floor_seconds)
        lines.append(f"| {c.name} | {store} | {floor} | {c.ratio:.2f} | {interval} | {c.pairs} | {verdict} |")
    lines += ["", "| what | median | 90th percentile | calls |", "|---|--:|--:|--:|"]
    for t in timings:
        lines.append(f"| {t.name} | {milliseconds(t.median_seconds)} | {milliseconds(t.p90_seconds)} | {t.calls} |")
    return "\n".join(lines)


def milliseconds(seconds: float) -> str:
    """Return a duration with a sensible number of digits."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.3f} ms"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the filesystem store against the bare disk.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, a few seconds: does it run at all?")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path.cwd(),
        help="work in a temporary directory below this one, removed afterwards; it decides which disk is "
        "measured (default: the working directory)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the data and of the intervals (default: 1)")
    parser.add_argument(
        "--output", type=Path, help="where the JSON goes (default: benchmarks/results/store[-quick].json)"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, print, write."""
    options = arguments()
    output = options.output or RESULTS / ("store-quick.json" if options.quick else "store.json")
    facts = machine_facts(str(options.directory))
    with tempfile.TemporaryDirectory(prefix=".bench-store-", dir=options.directory) as directory:
        bench = Bench(Path(directory), QUICK if options.quick else Plan(), random.Random(options.seed))
        bench.run()
    document = {
        "machine": facts,
        "seed": options.seed,
        "quick": options.quick,
        "page_cache": "warm for both sides of every read",
        "comparisons": [c.to_json_value() for c in bench.comparisons],
        "timings": [t.to_json_value() for t in bench.timings],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2) + "\n")
    print("  ".join(f"{key} {value}" for key, value in facts.items()), end="\n\n")
    print(table(bench.comparisons, bench.timings))


if __name__ == "__main__":
    main()
