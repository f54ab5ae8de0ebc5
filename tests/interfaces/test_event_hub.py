"""Events for many listeners: everybody gets them in order, and who does not listen is let go without a wait."""

from holdfast.engine.events import SinkRetry, Stopped
from holdfast.interfaces.event_hub import EventHub


def test_every_listener_gets_what_comes_after_it_began_to_listen() -> None:
    hub = EventHub()
    hub.on_event(Stopped(1, None))
    news: list[str] = []
    first = hub.subscribe(lambda: news.append("first"))
    hub.on_event(Stopped(2, None))
    second = hub.subscribe(lambda: news.append("second"))
    hub.on_event(Stopped(3, None))
    assert [(number, event["epoch"]) for number, event in first.take()] == [(2, 2), (3, 3)]
    assert [(number, event["epoch"]) for number, event in second.take()] == [(3, 3)]
    assert news == ["first", "first", "second"]
    assert first.take() == []


def test_who_does_not_take_is_let_go_and_the_others_are_not() -> None:
    hub = EventHub(backlog=3)
    stuck, lively = hub.subscribe(lambda: None), hub.subscribe(lambda: None)
    taken = []
    for epoch in range(10):
        hub.on_event(Stopped(epoch, None))
        taken += lively.take()
    assert stuck.lost
    assert hub.listeners == 1
    assert not lively.lost
    assert [event["epoch"] for _, event in taken] == list(range(10))
    assert len(stuck.take()) == 3, "what it had is still there, and no more comes"


def test_who_leaves_gets_nothing_more() -> None:
    hub = EventHub()
    subscription = hub.subscribe(lambda: None)
    subscription.close()
    hub.on_event(Stopped(1, None))
    assert subscription.take() == []
    assert hub.listeners == 0


def test_secrets_in_events_are_not_passed_on() -> None:
    hub = EventHub()
    subscription = hub.subscribe(lambda: None)
    hub.on_event(SinkRetry("db", 1, "commit", 1, "postgres://app:hunter2@db/app did not answer", 0.5))
    assert "hunter2" not in str(subscription.take())
