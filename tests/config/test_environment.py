"""Secrets and log settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from prfaas.config.environment import Environment, read_environment
from prfaas.config.reader import read_topology
from prfaas.config.topology import Topology
from prfaas.core.errors import ConfigError

SECRET = "s" * 32


def topology(tmp_path: Path, listen: str = "127.0.0.1:8000", more: str = "") -> Topology:
    home = f"{{kind: pd, advertise: h, listen: '{listen}', nodes: [{{name: d, role: decode}}]}}"
    (tmp_path / "t.yaml").write_text(f"model: m\nclusters:\n  home: {home}\n{more}")
    return read_topology(tmp_path / "t.yaml")


def test_a_secret_is_made_only_for_one_program_that_starts_all_on_loopback(tmp_path: Path) -> None:
    local = topology(tmp_path)
    made = [read_environment(local, {}, alone=True).secret for _ in range(2)]
    assert made[0] != made[1]
    assert min(map(len, made)) >= 32
    with pytest.raises(ConfigError, match=r"there is no secret; expected \$PRFAAS_SECRET, or security.secret_file"):
        read_environment(local, {})
    public = topology(tmp_path, "0.0.0.0:8000")
    with pytest.raises(ConfigError, match=r"there is no secret, and 0.0.0.0:8000 is not on loopback") as exposed:
        read_environment(public, {"PRFAAS_API_KEYS": "k"}, alone=True)
    assert exposed.value.where == ("clusters", "home", "listen")


def test_a_short_secret_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the secret has 7 characters; expected 32 or more") as caught:
        read_environment(topology(tmp_path), {"PRFAAS_SECRET": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_public_gateway_needs_api_keys(tmp_path: Path) -> None:
    public = topology(tmp_path, "0.0.0.0:8000")
    with pytest.raises(
        ConfigError, match=r"there are no API keys, and the gateway's 0.0.0.0:8000 is not on loopback"
    ) as open_to_all:
        read_environment(public, {"PRFAAS_SECRET": SECRET}, gateway="home")
    assert open_to_all.value.where == ("clusters", "home", "listen")
    with pytest.raises(ConfigError, match="there are no API keys"):
        read_environment(public, {"PRFAAS_SECRET": SECRET}, alone=True)
    keys = {"PRFAAS_SECRET": SECRET, "PRFAAS_API_KEYS": " one, two ,,"}
    assert read_environment(public, keys, gateway="home").api_keys == ("one", "two")


def test_no_other_program_needs_api_keys(tmp_path: Path) -> None:
    """Nor the file with them, which is not on its machine."""
    public = topology(tmp_path, "0.0.0.0:8000", "security: {api_keys_file: not-here}\n")
    for gateway in ("", "far"):
        assert read_environment(public, {"PRFAAS_SECRET": SECRET}, gateway=gateway).api_keys == ()
    with pytest.raises(ConfigError, match="not-here: cannot be read"):
        read_environment(public, {"PRFAAS_SECRET": SECRET}, gateway="home")


def test_secrets_from_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "keys").write_text("one\ntwo\n")
    named = topology(tmp_path, more="security: {secret_file: secret, api_keys_file: keys}\n")
    given = read_environment(named, {}, gateway="home")
    assert (given.secret, given.api_keys) == (SECRET, ("one", "two"))
    (tmp_path / "secret").unlink()
    with pytest.raises(ConfigError, match="secret: cannot be read: No such file"):
        read_environment(named, {})


def test_other_variables_can_be_named(tmp_path: Path) -> None:
    named = topology(tmp_path, more="security: {secret_env: OUR_SECRET}\n")
    assert read_environment(named, {"OUR_SECRET": SECRET}).secret == SECRET
    with pytest.raises(ConfigError, match="the same variable as secret_env"):
        topology(tmp_path, more="security: {api_keys_env: PRFAAS_SECRET}\n")


def test_log_settings(tmp_path: Path) -> None:
    local = topology(tmp_path, more="log: {level: debug}\n")
    assert read_environment(local, {"PRFAAS_SECRET": SECRET}).log.level == "debug"
    given = read_environment(local, {"PRFAAS_SECRET": SECRET, "PRFAAS_LOG_LEVEL": "error", "PRFAAS_LOG_FORMAT": "json"})
    assert (given.log.level, given.log.format) == ("error", "json")
    with pytest.raises(ConfigError, match=r"\$PRFAAS_LOG_LEVEL is 'loud'; expected one of debug, info, warning, error"):
        read_environment(local, {"PRFAAS_SECRET": SECRET, "PRFAAS_LOG_LEVEL": "loud"})


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    shown = repr(Environment(SECRET, ("key",), topology(tmp_path).log))
    assert SECRET not in shown
    assert "key" not in shown.replace("api_keys", "")
