"""The settings of copies."""

import pytest

from holdfast import PipelineDefinitionError
from sync.machines import settings


def test_the_settings_show_no_credentials() -> None:
    assert "wJalrXUtnFEMI" not in repr(settings(storage_options={"secret_access_key": "wJalrXUtnFEMI"}))


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "file://", "ftp://host/folder"])
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=f"read_bucket is '{url}', expected a URL"):
        settings(read_bucket=url)
