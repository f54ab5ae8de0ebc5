"""The settings of copies."""

from sync.machines import settings


def test_the_settings_show_no_credentials() -> None:
    assert "wJalrXUtnFEMI" not in repr(settings(storage_options={"secret_access_key": "wJalrXUtnFEMI"}))
