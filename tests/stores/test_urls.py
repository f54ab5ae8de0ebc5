"""From a path or URL to a store: every form, every mistake in one clear line, and no secret in any of them."""

import http.server
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import CheckpointStoreError, StoreConfigurationError, open_store
from holdfast.engine.sync.sides import bucket_side
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_to_ask
from stores.builders import manifest, seal
from stores.places import BUCKET, S3_OPTIONS

SECRET = "wJalrXUtnFEMI/K7MDENG"
SESSION = "IQoJb3JpZ2luX2VjEXAMPLE"


def works(store: DurableCheckpointStore) -> bool:
    sealed = seal(store, 1)
    return store.load_latest() == sealed


# Forms


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file://localhost{path}", "FILE://{path}"])
def test_a_directory_can_be_named_in_several_ways(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(path=tmp_path / "store"))
    assert works(store)
    assert store.describe() == str(tmp_path / "store")
    assert (tmp_path / "store/checkpoints/checkpoint_000001/manifest.json").exists()


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    assert works(open_store(tmp_path / "store"))


def test_a_relative_path_is_relative_to_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("a/b")
    monkeypatch.chdir("/")
    assert works(store)
    assert (tmp_path / "a/b/checkpoints/latest.txt").exists()


def test_a_home_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/store").describe() == str(tmp_path / "store")


def test_a_file_url_may_have_escapes(tmp_path: Path) -> None:
    assert works(open_store(f"file://{tmp_path}/with%20space%23"))
    assert (tmp_path / "with space#" / "checkpoints").is_dir()


def test_a_name_that_only_looks_like_a_scheme_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert works(open_store("C:store"))


def test_memory_is_new_each_time_unless_it_has_a_name() -> None:
    assert works(open_store("memory://"))
    assert open_store("memory://").load_latest() is None
    name = f"memory://{uuid.uuid4().hex}"
    assert works(open_store(name))
    assert open_store(name).list_ids() == [1]


def test_a_bucket_is_opened_with_options(s3_endpoint: str) -> None:
    prefix = uuid.uuid4().hex
    options = {**S3_OPTIONS, "endpoint": s3_endpoint, "allow_http": "true", "timeout": "30s"}
    store = open_store(f"s3://{BUCKET}/{prefix}/", options=options)
    assert works(store)
    assert store.describe() == f"s3://{BUCKET}/{prefix}/"
    assert open_store(f"s3a://{BUCKET}/{prefix}", options=options, read_only=True).list_ids() == [1]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/prefix", {}),
        ("az://container/prefix", {"account_name": "account"}),
        ("abfss://container@account.dfs.core.windows.net/prefix", {}),
        ("abfs://container/prefix", {"account_name": "account"}),
    ],
)
def test_the_other_clouds_have_their_usual_urls(url: str, options: dict[str, str]) -> None:
    store = open_store(url, options=options, read_only=True)
    assert store.describe() == url


def test_the_settings_of_a_store_are_taken(tmp_path: Path) -> None:
    store = open_store(tmp_path, retain=2, vnode_count=64)
    seal(store, 1, 2, 3)
    assert store.vnode_count() == 64
    assert store.list_ids() == [2, 3]
    assert open_store(tmp_path, retain=None).vnode_count() == 256


def test_ten_are_retained_unless_said_otherwise(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for id in range(1, 14):
        store.save(manifest(id))
    assert store.list_ids() == list(range(4, 14))


# Reading only


def test_reading_only_writes_nothing(tmp_path: Path) -> None:
    seal(open_store(tmp_path), 1, 2)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    store = open_store(tmp_path, read_only=True)
    assert store.load_latest() == store.load_by_id(2)
    assert store.list() == [(1, 1), (2, 2)]
    assert store.recover_latest_validated().chosen_id == 2
    assert store.load_state_data(1) is not None
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_reading_only_makes_no_store_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(StoreConfigurationError, match="there is no checkpoint store at"):
        open_store(tmp_path / "nothing", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_reading_only_asks_a_bucket_nothing(s3_endpoint: str) -> None:
    options = {**S3_OPTIONS, "endpoint": s3_endpoint, "allow_http": "true"}
    store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", options=options, read_only=True)
    assert store.list_ids() == []
    assert store.sidecars() == {}


# Mistakes


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "the path of the store is empty"),
        ("file://", "the path of the store is empty"),
        ("file://relative/path", "use file:///absolute/path or a plain path"),
        ("file:///a?b=c", "use file:///absolute/path or a plain path"),
        ("ftp://host/path", "unknown scheme 'ftp'; use a path, file://, s3://, gs://, az:// or memory://"),
        ("http://host/path", "unknown scheme 'http'"),
        ("s3://", "names no bucket; use s3://bucket/prefix"),
        ("s3:///prefix", "names no bucket"),
        ("s3:/bucket/prefix", "a URL begins with s3://"),
        ("file:/tmp/x", "a URL begins with file://"),
        ("s3://bucket/a?region=x", "put them into the environment or the options"),
        ("s3://bucket/a#b", "put them into the environment or the options"),
        ("az://container", "Account must be specified"),
    ],
)
def test_a_url_that_is_no_store_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreConfigurationError) as caught:
        open_store(url)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_went_through_pathlib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreConfigurationError, match=r"no pathlib\.Path"):
        open_store(Path("s3://bucket/prefix"))
    assert list(tmp_path.iterdir()) == []


def test_an_option_nobody_knows_is_one_clear_line() -> None:
    with pytest.raises(StoreConfigurationError, match="'colour' is not valid") as caught:
        open_store("s3://bucket", options={"colour": "red"})
    assert "\n" not in str(caught.value)


# Secrets


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIAEXAMPLE:{SECRET.replace('/', '')}@bucket/prefix",
        f"s3://AKIAEXAMPLE:{SECRET}@bucket/prefix",
        f"s3://{SECRET}@bucket",
        f"s3://{SECRET.replace('/', '')}@bucket/prefix",
        f"abfss://container@account.dfs.core.windows.net/{SECRET}@prefix",
        f"s3:/AKIAEXAMPLE:{SECRET}@bucket/prefix",
        f"az://container/prefix?sig={SECRET}",
        f"s3://bucket/prefix?X-Amz-Signature={SECRET}",
        f"abfss://container:{SECRET}@account.dfs.core.windows.net/prefix",
        f"ftp://user:{SECRET}@host/path",
        f"file://user:{SECRET}@host/path",
    ],
)
def test_credentials_in_a_url_are_refused_and_never_shown(url: str) -> None:
    with pytest.raises(StoreConfigurationError) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    for part in SECRET.split("/"):
        assert part not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.fixture
def talkative() -> Iterator[str]:
    """Return the endpoint of a server that answers every request with an error that repeats all it was told."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            told = "".join(f"<{name}>{value}</{name}>" for name, value in self.headers.items())
            code = f"<Code>InvalidToken</Code><Message>The provided token is malformed</Message>{told}"
            body = f'<?xml version="1.0"?><Error>{code}</Error>'.encode()
            self.send_response(400)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_store_keeps_the_options_it_was_opened_with() -> None:
    medium = open_store("memory://").medium
    for options in ({"region": "us-east-1"}, None):
        assert DurableCheckpointStore(medium, retain=None, options=options).options.values == (options or {})


def test_a_bucket_of_copies_is_asked_where_and_as_whom_its_options_say(talkative: str) -> None:
    options = {"endpoint": talkative, "allow_http": "true", "region": "us-east-1", "token": SESSION}
    options |= {"access_key_id": "AKIAEXAMPLE", "secret_access_key": SECRET}
    with pytest.raises(CheckpointStoreError, match="The provided token is malformed"):
        bucket_side("s3://copies/shop", options, vnode_count=4).store.list_ids()


def test_a_servers_error_never_shows_credentials(talkative: str, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a server may repeat what it was told, we do not. Method: a server that repeats everything."""
    options = {"endpoint": talkative, "allow_http": "true", "region": "us-east-1", "token": SESSION}
    options |= {"access_key_id": "AKIAEXAMPLE", "secret_access_key": SECRET}
    messages = []
    with pytest.raises(CheckpointStoreError) as caught:
        open_store("s3://bucket/prefix", options=options)
    messages.append(str(caught.value))
    store = open_store("s3://bucket/prefix", options=options, read_only=True)
    for call in (store.list_ids, store.load_latest, lambda: seal(store, 1), lambda: store.load_state_data(1)):
        with pytest.raises(CheckpointStoreError) as caught:
            call()
        messages.append(str(caught.value))
    for message in [*messages, caplog.text]:
        assert SESSION not in message
        assert SECRET not in message
        assert "AKIAEXAMPLE" not in message
    assert all("InvalidToken, The provided token is malformed" in message for message in messages)


def test_a_store_never_says_more_than_its_url(s3_endpoint: str) -> None:
    options = {**S3_OPTIONS, "secret_access_key": SECRET, "endpoint": s3_endpoint, "allow_http": "true"}
    store = open_store(f"s3://{BUCKET}/p", options=options, read_only=True)
    assert SECRET not in f"{store.describe()} {store!r} {store.__dict__!r}"


def test_a_store_that_is_only_asked_about_is_not_made(tmp_path: Path) -> None:
    store, exists = open_to_ask(tmp_path / "new" / "store", vnode_count=2)
    assert (exists, store.list_ids(), store.vnode_count()) == (False, [], 2)
    assert list(tmp_path.iterdir()) == []
    made = open_store(tmp_path / "made")
    seal(made, 1)
    store, exists = open_to_ask(tmp_path / "made")
    assert (exists, store.list_ids()) == (True, [1])
    assert open_to_ask("memory://")[1]


def test_where_no_store_can_be_made_asking_says_what_opening_says(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for ask in (open_store, open_to_ask):
        with pytest.raises(StoreConfigurationError, match=r"cannot use .*/file/store as a store: Not a directory"):
            ask(tmp_path / "file" / "store")
    with pytest.raises(StoreConfigurationError, match="unknown scheme 'ftp'"):
        open_to_ask("ftp://x/y")
