"""What is scrubbed, and what is left alone."""

import pytest

from holdfast.secrets import scrub


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("s3://AKIA1:hunter2@bucket/path", "s3://***@bucket/path"),
        ("postgres://user:hunter2@db:5432/x failed", "postgres://***@db:5432/x failed"),
        ("postgres://user:hun@ter2@db/x", "postgres://***@db/x"),
        ("https://hunter2@host", "https://***@host"),
        ("amqp://a:hunter2@one amqp://b:hunter2@two", "amqp://***@one amqp://***@two"),
        ("https://acc.blob/x?sv=2024&sig=hunter2%3D&se=9", "https://acc.blob/x?sv=2024&sig=***&se=9"),
        (
            "https://h/x?X-Amz-Credential=hunter2/2025&X-Amz-Signature=hunter2",
            "https://h/x?X-Amz-Credential=***&X-Amz-Signature=***",
        ),
        ("AWS_SECRET_ACCESS_KEY=hunter2/abc+d=", "AWS_SECRET_ACCESS_KEY=***"),
        ("aws_access_key_id=hunter2", "aws_access_key_id=***"),
        ("aws_session_token='hunter2 with spaces'", "aws_session_token=***"),
        ("password: hunter2", "password: ***"),
        ("Password = hunter2, retry", "Password = ***, retry"),
        ("pwd=hunter2;db=x", "pwd=***;db=x"),
        ("passphrase=hunter2", "passphrase=***"),
        ("jdbc:postgresql://h/db?user=u&password=hunter2", "jdbc:postgresql://h/db?user=u&password=***"),
        ("token=hunter2", "token=***"),
        ("client_secret=hunter2&grant=x", "client_secret=***&grant=x"),
        ("AccountName=a;AccountKey=hunter2==;EndpointSuffix=b", "AccountName=a;AccountKey=***;EndpointSuffix=b"),
        ("fs.azure.account.key.a.dfs.core.windows.net=hunter2", "fs.azure.account.key.a.dfs.core.windows.net=***"),
        ("spark.hadoop.fs.s3a.secret.key=hunter2", "spark.hadoop.fs.s3a.secret.key=***"),
        ("api-key: hunter2", "api-key: ***"),
        ("apikey=hunter2", "apikey=***"),
        ('{"password": "hunter2", "user": "u"}', '{"password": ***, "user": "u"}'),
        ("{'aws_secret_access_key': 'hunter2'}", "{'aws_secret_access_key': ***}"),
        ('{"private_key": "-----BEGIN hunter2"}', '{"private_key": ***}'),
        ("Authorization: Bearer hunter2.abc", "Authorization: Bearer ***"),
        ("{'authorization': 'Basic hunter2'}", "{'authorization': 'Basic ***'}"),
    ],
)
def test_credentials_are_replaced_and_the_rest_stays(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed
    assert "hunter2" not in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "manifest checksum mismatch: expected ab12, got cd34",
        "token bucket",
        "the secret of good checkpoints",
        "sidecar state-000042.bin is needed but not found",
        "cannot list s3://bucket/prefix/manifests: connection refused",
        "s3://bucket/path@v1/x",
        "file:///var/lib/holdfast",
        "ask someone@example.com",
        "no authorization: ask your administrator",
        "signature",
        "key=value monkey=banana keyboard: qwerty",
        "design=new assigned: yes",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert scrub(text) == text
