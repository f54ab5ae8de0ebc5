"""Who is let in: addresses, tokens, hosts, origins, sizes and rates."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import InvalidRequest
from holdfast.interfaces.http.addresses import Address, is_loopback, listen, listen_by_default
from holdfast.interfaces.http.gate import RateLimit
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.settings import HttpListening, HttpSettings
from holdfast.testing import ManualClock
from interfaces.http_client import Served, served

OPERATOR, READER = "operator-" + "o" * 24, "reader-" + "r" * 24
TOKENS = Tokens(OPERATOR, READER)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", security=Security(TOKENS)) as shop:
        yield shop


@pytest.fixture
def open_to_all(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as shop:
        yield shop


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("localhost:0", "localhost", 0, True),
        ("", "127.0.0.1", 8080, True),
        (":9000", "127.0.0.1", 9000, True),
        ("9000", "127.0.0.1", 9000, True),
        ("[::1]:80", "::1", 80, True),
        ("127.8.9.10", "127.8.9.10", 8080, True),
        ("0.0.0.0:8080", "0.0.0.0", 8080, False),
        ("[::]:8080", "::", 8080, False),
        ("10.0.0.7:8080", "10.0.0.7", 8080, False),
        ("example.com:8080", "example.com", 8080, False),
        ("localhost.example.com:1", "localhost.example.com", 1, False),
    ],
)
def test_addresses_and_which_of_them_only_this_machine_can_reach(
    text: str, host: str, port: int, loopback: bool
) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.loopback) == (host, port, loopback)


@pytest.mark.parametrize("text", ["http://localhost:1", "a:b", "1:2:3", "host:99999", "host:-1", "[::1", "a b:1"])
def test_what_is_no_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no address"):
        Address.parse(text)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.7:0"])
def test_an_address_that_others_can_reach_needs_a_token_or_a_word(address: str) -> None:
    settings = HttpSettings(Address.parse(address))
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_HTTP_TOKEN.*--insecure"):
        settings.listen()
    Security(TOKENS).check_bind(Address.parse(address), insecure=False)
    Security().check_bind(Address.parse(address), insecure=True)


def test_with_a_token_it_listens_for_everybody() -> None:
    HttpSettings(Address.parse("0.0.0.0:0"), Security(TOKENS)).listen().close()


def test_an_address_that_is_taken_is_told_in_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(InvalidRequest, match=rf"cannot listen on {taken}: address already in use"):
            listen(taken)


def test_the_default_port_gives_way_to_the_next_free_one() -> None:
    first, second = listen_by_default(), listen_by_default()
    try:
        ports = [each.getsockname()[1] for each in (first, second)]
        assert ports[0] != ports[1]
        assert all(each.getsockname()[0] == "127.0.0.1" for each in (first, second))
        told = HttpListening.at(Address("127.0.0.1", 8081), HttpSettings())
        assert told == HttpListening("http://127.0.0.1:8081", "127.0.0.1:8080")
    finally:
        first.close()
        second.close()


def test_without_a_token_or_with_a_wrong_one_nothing_is_told(guarded: Served) -> None:
    for headers in ({}, bearer("wrong" * 8), {"Authorization": f"Basic {OPERATOR}"}, {"Authorization": OPERATOR}):
        for path in ("/v0/pipelines/shop", "/v0/config", "/metrics", "/api/v1/pipelines", "/nowhere"):
            answer = guarded.client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error_code"] == "InvalidApiKey"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert guarded.client.post("/checkpoint", headers=headers).status_code == 401
    assert guarded.pipeline.requests.request() == 0, "nothing was asked for"


def test_a_readers_token_looks_and_changes_nothing(guarded: Served) -> None:
    headers = bearer(READER)
    assert guarded.client.get("/v0/pipelines/shop", headers=headers).status_code == 200
    assert guarded.client.get("/stats", headers=headers).status_code == 200
    for method, path in (
        ("POST", "/checkpoint"),
        ("POST", "/stop"),
        ("POST", "/api/v1/pipelines/shop/savepoints"),
        ("DELETE", "/api/v1/pipelines/shop/savepoints/x"),
    ):
        answer = guarded.client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["error_code"]) == (403, "ReadOnlyToken")
    assert guarded.pipeline.requests.request() == 0


def test_an_operators_token_may_do_everything(guarded: Served) -> None:
    headers = {"Authorization": f"bearer {OPERATOR}"}
    assert guarded.client.post("/checkpoint", headers=headers).status_code == 200
    assert guarded.client.get("/stats", headers=headers).status_code == 200


def test_that_the_server_is_well_and_how_it_is_used_everybody_may_know(guarded: Served) -> None:
    assert guarded.client.get("/healthz").json() == {"status": "healthy"}
    assert guarded.client.get("/openapi.json").status_code == 200
    assert guarded.client.get("/docs").status_code == 200


def test_a_token_shows_up_nowhere(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    texts = [
        guarded.client.get(path, headers=bearer(OPERATOR)).text
        for path in ("/v0/pipelines/shop", "/stats", "/metrics", "/nowhere", f"/{OPERATOR}", "/docs", "/openapi.json")
    ]
    assert OPERATOR not in "".join(texts)
    assert OPERATOR not in caplog.text
    assert OPERATOR not in repr(TOKENS) + repr(Security(TOKENS))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "a b"])
def test_a_page_that_has_its_own_name_lead_here_gets_nothing(open_to_all: Served, host: str) -> None:
    answer = open_to_all.client.get("/stats", headers={"Host": host})
    assert answer.status_code in (400, 403)
    assert "global_metrics" not in answer.text


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "192.168.1.5:8080", "LOCALHOST"])
def test_our_own_names_and_plain_addresses_are_fine(open_to_all: Served, host: str) -> None:
    assert open_to_all.client.get("/stats", headers={"Host": host}).status_code == 200


def test_names_can_be_allowed(tmp_path: Path) -> None:
    with served(tmp_path / "store", security=Security(allowed_hosts=frozenset({"etl.internal"}))) as shop:
        assert shop.client.get("/stats", headers={"Host": "etl.internal:8080"}).status_code == 200
        assert shop.client.get("/stats", headers={"Host": "other.internal"}).status_code == 403


def test_a_page_of_another_site_cannot_stop_the_pipeline(open_to_all: Served) -> None:
    """A browser sends such a POST without asking first; only the header Origin tells it from ours."""
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        answer = open_to_all.client.post("/stop", headers={"Origin": origin})
        assert (answer.status_code, answer.json()["error_code"]) == (403, "OtherOrigin")
    own = {"Origin": open_to_all.server.url, "Host": str(open_to_all.server.address)}
    assert open_to_all.client.post("/checkpoint", headers=own).status_code == 200
    assert open_to_all.get("/v0/pipelines/shop")["deployment_status"] == "Running"


def test_no_other_site_may_read_our_answers(open_to_all: Served) -> None:
    answer = open_to_all.client.get("/stats", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    asked = open_to_all.client.options(
        "/stop", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert asked.status_code == 405
    assert not [name for name in asked.headers if name.startswith("access-control-")]


def test_a_large_request_is_refused_whether_it_says_so_or_not(open_to_all: Served) -> None:
    path = "/api/v1/pipelines/shop/savepoints"
    announced = open_to_all.client.post(path, content=b"x" * 70_000)
    assert (announced.status_code, announced.json()["error_code"]) == (413, "RequestTooLarge")

    def pieces() -> Iterator[bytes]:
        for _ in range(70):
            yield b"x" * 1000

    unannounced = open_to_all.client.post(path, content=pieces())
    assert unannounced.status_code == 413


def test_a_path_without_end_is_refused(open_to_all: Served) -> None:
    assert open_to_all.client.get("/" + "a" * 50_000).status_code == 414


def test_too_many_requests_are_told_to_slow_down(tmp_path: Path) -> None:
    with served(tmp_path / "store", security=Security(requests_per_second=0.5)) as shop:
        answers = [shop.client.get("/healthz") for _ in range(20)]
        assert answers[0].status_code == 200
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"]
        assert refused.json()["error_code"] == "TooManyRequests"


def test_the_rate_is_of_each_client_and_comes_back_with_time() -> None:
    clock = ManualClock()
    rate = RateLimit(10, clock)
    assert [rate.allows("a") for _ in range(21)] == [True] * 20 + [False]
    assert rate.allows("b")
    clock.advance(0.5)
    assert [rate.allows("a") for _ in range(6)] == [True] * 5 + [False]


def test_clients_without_end_take_no_memory() -> None:
    rate = RateLimit(10, ManualClock())
    for number in range(5000):
        rate.allows(str(number))
    assert len(rate._left) <= 1024


def test_tokens_come_from_files_and_variables_never_from_a_command_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OPERATOR}\n")
    environment = {"HOLDFAST_HTTP_TOKEN_FILE": str(file), "HOLDFAST_HTTP_READ_TOKEN": READER}
    assert Tokens.of_environment(environment) == TOKENS
    assert Tokens.of_environment({"HOLDFAST_HTTP_TOKEN": READER}, operator_file=str(file)) == Tokens(OPERATOR)
    assert not Tokens.of_environment({})


@pytest.mark.parametrize("token", ["short", "has blanks in the middle of it", "é" * 20, "x" * 600])
def test_a_token_that_is_too_weak_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_HTTP_TOKEN is none") as refusal:
        Tokens.of_environment({"HOLDFAST_HTTP_TOKEN": token})
    assert token not in str(refusal.value)


def test_a_token_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read the token in"):
        Tokens.of_environment({}, operator_file=str(tmp_path / "nothing"))


def test_loopback_is_not_guessed_from_a_name() -> None:
    assert not is_loopback("localhost.example")
    assert not is_loopback("127.0.0.1.example")
    assert is_loopback("::1")
