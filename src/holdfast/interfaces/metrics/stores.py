"""What a store says of itself: beside a running pipeline, and alone when its pipeline does not run here."""

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.interfaces.metrics.exposition import render
from holdfast.interfaces.metrics.gauges import Gauges
from holdfast.interfaces.metrics.remembered import Heard, Remembered
from holdfast.interfaces.verdict import Recoverable, StoreHealth, store_health
from holdfast.stores.store import DurableCheckpointStore

FindStore = Callable[[], DurableCheckpointStore]


class StoreMetrics:
    """The numbers of a store whose pipeline is stopped, or runs elsewhere. Safe to be asked by many at once.

    `find` is asked for the store before each look: what cannot be opened is a store that does not answer.
    """

    def __init__(self, pipeline: str, find: FindStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._pipeline = pipeline
        self._health = remembered_health(find, clock)

    def collect(self) -> Iterable[Metric]:
        """Return the families of now."""
        gauges = Gauges(self._pipeline)
        heard = self._health.get()
        gauges.put("pipeline_up", 0)
        put_store(gauges, heard)
        if heard.answer is not None:
            _put_newest(gauges, heard.answer, heard.seconds_ago)
        return gauges.families()

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return render([self])


def remembered_health(find: FindStore, clock: Clock) -> Remembered[StoreHealth]:
    """Return the verdict on a store for whoever asks often: it is looked at every half minute at most."""
    return Remembered(lambda: store_health(find(), clock.now_ms()), clock)


def put_store(gauges: Gauges, heard: Heard[StoreHealth]) -> None:
    """Add what only a look at the store tells."""
    gauges.put("store_reachable", not heard.failed)
    health = heard.answer
    if health is None:
        return
    for verdict in Recoverable:
        gauges.put("store_recoverable", health.recoverable is verdict, verdict.value)
    gauges.put("store_checkpoints", health.checkpoints)
    gauges.put("store_bytes", health.bytes)
    gauges.put("store_fallbacks", len(health.fallbacks))
    gauges.put("store_independent_fallback", health.independent_fallback is not None)
    gauges.put("damaged_checkpoints", len(health.damaged))
    gauges.put("recovery_estimate_seconds", health.estimate.seconds)
    if health.verified is not None:
        gauges.put("verification_age_seconds", health.verified.seconds_ago + heard.seconds_ago)
        age = health.verified.age_seconds
        gauges.put("verified_checkpoint_age_seconds", None if age is None else age + heard.seconds_ago)


def _put_newest(gauges: Gauges, health: StoreHealth, seconds_ago: float) -> None:
    """Add what a running pipeline would tell from its own events."""
    if health.checkpoint is not None:
        gauges.put("epoch", health.checkpoint.epoch)
        gauges.put("checkpoint_id", health.checkpoint.checkpoint_id)
        gauges.put("checkpoint_state_bytes", health.checkpoint.state_bytes)
        gauges.put("checkpoint_age_seconds", health.checkpoint.age_seconds + seconds_ago)
    if health.holder is not None:
        gauges.put("generation", health.holder.generation)
    for sink in health.sinks_in_doubt:
        gauges.put("sink_in_doubt", 1, sink.name)
