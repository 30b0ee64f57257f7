from ipaddress import ip_address, ip_network

import pytest

from paceline.notifier.guard import AddressPolicy, AddressReason
from paceline.notifier.settings import NotifierSettings
from paceline.runtime.settings import SettingsError, load_settings

STRICT = AddressPolicy()
LOCAL = AddressPolicy(allow_private=True)


@pytest.mark.parametrize(
    ("address", "strict", "local"),
    [
        ("8.8.8.8", AddressReason.PUBLIC, AddressReason.PUBLIC),
        ("2001:4860:4860::8888", AddressReason.PUBLIC, AddressReason.PUBLIC),
        ("127.0.0.1", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("::1", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("10.1.2.3", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("192.168.1.1", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("fd00::1", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("::ffff:127.0.0.1", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("64:ff9b::a00:1", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("2002:7f00:1::", AddressReason.PRIVATE, AddressReason.ALLOWED_PRIVATE),
        ("100.64.0.1", AddressReason.NEVER, AddressReason.NEVER),
        ("169.254.169.254", AddressReason.NEVER, AddressReason.NEVER),
        ("::ffff:169.254.169.254", AddressReason.NEVER, AddressReason.NEVER),
        ("fe80::1", AddressReason.NEVER, AddressReason.NEVER),
        ("224.0.0.1", AddressReason.NEVER, AddressReason.NEVER),
        ("0.0.0.0", AddressReason.NEVER, AddressReason.NEVER),
        ("::", AddressReason.NEVER, AddressReason.NEVER),
    ],
)
def test_addresses(address: str, strict: AddressReason, local: AddressReason) -> None:
    assert STRICT.judge(ip_address(address)) is strict
    assert LOCAL.judge(ip_address(address)) is local
    assert strict.is_allowed is (strict is AddressReason.PUBLIC)


def test_a_named_network_is_allowed_and_nothing_beside_it() -> None:
    policy = AddressPolicy(networks=(ip_network("10.20.0.0/16"),))
    assert policy.judge(ip_address("10.20.3.4")) is AddressReason.ALLOWED_NETWORK
    assert policy.judge(ip_address("::ffff:10.20.3.4")) is AddressReason.ALLOWED_NETWORK
    assert policy.judge(ip_address("10.21.0.1")) is AddressReason.PRIVATE


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_NOTIFIER_ALERTMANAGER_URLS", "http://a:9093/, https://b")
    monkeypatch.setenv("PACELINE_NOTIFIER_ALLOWED_NETWORKS", "10.20.0.0/16")
    settings = load_settings(NotifierSettings)
    assert settings.alertmanager_urls == ("http://a:9093", "https://b")
    assert settings.networks == (ip_network("10.20.0.0/16"),)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ALERTMANAGER_URLS", "alertmanager:9093", "expected http://HOST:PORT"),
        ("ALLOWED_NETWORKS", "10.20.0.0/99", "10.20.0.0/99"),
        ("SEVERITY_MIN", "loud", "critical"),
        ("ALERTMANAGER_HOLD_S", "61", "at least twice"),
        ("WEBHOOK_TIMEOUT_S", "0", "greater than 0"),
    ],
)
def test_wrong_settings_say_what_was_expected(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"PACELINE_NOTIFIER_{name}", value)
    with pytest.raises(SettingsError, match="PACELINE_NOTIFIER_") as caught:
        load_settings(NotifierSettings)
    assert expected in str(caught.value)
