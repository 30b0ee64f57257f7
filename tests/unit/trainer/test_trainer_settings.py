import pytest

from paceline.trainer.settings import parse_coordinates, read_settings


def test_nothing_said_means_inactive() -> None:
    settings = read_settings({})
    assert not settings.active
    assert not settings.disabled
    assert settings.hook == "auto"
    assert settings.socket_path


def test_everything_is_read() -> None:
    settings = read_settings(
        {
            "PACELINE": "1",
            "PACELINE_DISABLED": "1",
            "PACELINE_AGENT_SOCKET": "/run/a.sock",
            "PACELINE_HOOK": "native",
            "PACELINE_JOB_ID": "j",
            "PACELINE_ATTEMPT": "a",
            "PACELINE_NAME": "n",
            "PACELINE_CLUSTER": "c",
            "PACELINE_TENANT": "t",
            "PACELINE_COORDINATES": "tp=1, pp=0",
        }
    )
    assert settings.active
    assert settings.disabled
    assert (settings.socket_path, settings.hook, settings.job_id, settings.attempt) == (
        "/run/a.sock",
        "native",
        "j",
        "a",
    )
    assert (settings.name, settings.cluster, settings.tenant) == ("n", "c", "t")
    assert settings.coordinates == {"tp": 1, "pp": 0}
    assert settings.warnings == ()


@pytest.mark.parametrize("text", ["0", ""])
def test_disabled_must_be_said(text: str) -> None:
    assert not read_settings({"PACELINE_DISABLED": text}).disabled


def test_bad_values_are_named_and_ignored() -> None:
    settings = read_settings({"PACELINE_HOOK": "magic", "PACELINE_COORDINATES": "tp=one"})
    assert settings.hook == "auto"
    assert settings.coordinates == {}
    assert "magic" in settings.warnings[0]
    assert "wrapper" in settings.warnings[0]
    assert "'tp=one'" in settings.warnings[1]


@pytest.mark.parametrize("text", ["tp", "=1", "tp=", "tp=-1", "tp=1;pp=0"])
def test_bad_coordinates(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=NUMBER"):
        parse_coordinates(text)
