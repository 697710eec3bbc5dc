"""The topology file: what it gives, and what each fault says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prfaas.config.reader import Overrides, read_topology, write_topology
from prfaas.config.topology import Topology
from prfaas.core.errors import ConfigError

NOTHING = Overrides()
EXAMPLE = Path(__file__).parents[2] / "examples" / "two-clusters.yaml"
GOOD = """\
model: smollm2
clusters:
  home:
    kind: pd
    listen: 127.0.0.1:8000
    nodes:
      - {name: p0, role: prefill}
      - {name: d0, role: decode}
  far:
    kind: prfaas
    nodes:
      - {name: f0, role: prefill}
links:
  - {from: far, to: home, bandwidth: 1Gbps, rtt: 20ms}
policy:
  threshold: 512
"""


def read(tmp_path: Path, text: str, overrides: Overrides = NOTHING) -> Topology:
    file = tmp_path / "t.yaml"
    file.write_text(text)
    return read_topology(file, overrides)


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(str(tmp_path / "t.yaml"))
    return said.removeprefix(str(tmp_path / "t.yaml")).removeprefix(":")


def test_the_example_is_good() -> None:
    topology = read_topology(EXAMPLE)
    assert list(topology.of_kind("pd")) == ["home"]
    link = topology.link("far", "home")
    assert link is not None
    assert (link.name, link.bandwidth_bps, link.rtt_ns, link.emulate) == ("far->home", 10**9, 20 * 10**6, True)


def test_values_and_defaults(tmp_path: Path) -> None:
    topology = read(tmp_path, GOOD)
    home = topology.clusters["home"]
    assert home.listen is not None
    assert (home.listen.host, home.listen.port) == ("127.0.0.1", 8000)
    assert [node.name for node in home.of_role("decode")] == ["d0"]
    assert topology.policy.threshold == 512
    assert topology.limits.max_body_bytes == 16 << 20
    assert topology.limits.leases.node_ns == 5 * 10**9
    assert topology.public_name == "smollm2"
    assert home.nodes[0].engine.kv_budget_bytes == 1 << 30


def test_the_only_gateway_has_a_port(tmp_path: Path) -> None:
    topology = read(tmp_path, GOOD.replace("    listen: 127.0.0.1:8000\n", ""))
    assert topology.clusters["home"].listen == "127.0.0.1:8000"


def test_overrides(tmp_path: Path) -> None:
    topology = read(tmp_path, GOOD, Overrides(model="tiny-hybrid", port=8123))
    assert topology.model == "tiny-hybrid"
    assert topology.clusters["home"].listen == "127.0.0.1:8123"


def test_directories_are_relative_to_the_file(tmp_path: Path) -> None:
    topology = read(tmp_path, GOOD.replace("smollm2", "./models/mine") + "security: {secret_file: s.txt}\n")
    assert topology.model == str(tmp_path / "models" / "mine")
    assert topology.public_name == "mine"
    assert topology.security.secret_file == str(tmp_path / "s.txt")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    topology = read(tmp_path, GOOD + "limits: {deadline: 1500ms, max_body: 3KiB, max_model_len: 99}\n")
    out = tmp_path / "out.yaml"
    write_topology(topology, out)
    assert read_topology(out) == topology
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


HOME_DECODE = "{name: d0, role: decode}"
FAULTS = {
    # unknown and missing settings
    ("threshold: 512", "treshold: 512"): "16: policy.treshold: unknown setting; did you mean `threshold`?",
    ("model: smollm2", "modell: smollm2"): "1: modell: unknown setting; did you mean `model`?",
    (
        "policy:",
        "zzz:",
    ): "15: zzz: unknown setting; expected one of model, served_name, clusters, links, policy, limits, ",
    ("role: decode", "rolle: decode"): "8: clusters.home.nodes[1].rolle: unknown setting; did you mean `role`?",
    ("bandwidth: 1Gbps, ", ""): "14: links[0]: `bandwidth` is missing",
    ("model: smollm2\n", ""): "1: `model` is missing",
    # types, units, ranges
    ("1Gbps", "1GBps"): "14: links[0].bandwidth: got '1GBps'; expected a bandwidth in bits a second",
    ("1Gbps", "0bps"): "14: links[0].bandwidth: got '0bps'; expected more than zero",
    ("20ms", "-20ms"): "14: links[0].rtt: got '-20ms', which is negative",
    ("20ms", "9" * 500): "14: links[0].rtt: got " + "9" * 77 + "...; expected a duration",
    ("20ms", "20h"): "14: links[0].rtt: got 20h; expected at most 10s",
    ("threshold: 512", "threshold: 99999999999"): "16: policy.threshold: got 99999999999; expected a whole number <=",
    ("20ms", "20"): "14: links[0].rtt: got 20; expected a duration with a unit",
    ("threshold: 512", "threshold: 0"): "16: policy.threshold: got 0; expected a whole number >= 1",
    ("threshold: 512", "threshold: many"): "16: policy.threshold: got 'many'; expected a whole number",
    ("threshold: 512", "threshold: 1.5"): "16: policy.threshold: got 1.5; expected a whole number",
    ("threshold: 512", "threshold: yes"): "16: policy.threshold: got true; expected a whole number",
    ("threshold: 512", "kind: best"): "16: policy.kind: got 'best'; expected one of balanced, fastest, local, ours, "
    "paper, priced, pull, remote, threshold",
    ("rtt: 20ms", "rtt: 20ms, emulate: 1"): "14: links[0].emulate: got 1; expected true or false",
    (
        "role: decode",
        "role: decoder",
    ): "8: clusters.home.nodes[1].role: got 'decoder'; expected one of decode, prefill (did",
    (
        "name: f0",
        "name: F0",
    ): "12: clusters.far.nodes[0].name: got 'F0'; expected lower-case letters, digits and hyphens",
    ("  far:", '  "far\\n":'): "9: clusters.'far\\n': not a name that is allowed; expected lower-case letters",
    ("  far:", "  Far:"): "9: clusters.Far: not a name that is allowed; expected lower-case letters",
    ("model: smollm2", "model: [a]"): "1: model: got a list; expected text",
    ("policy:\n  threshold: 512", "policy: 3"): "15: policy: got 3; expected a mapping",
    (
        "policy:\n  threshold: 512",
        "limits:\n  max_body: 1.5B",
    ): "16: limits.max_body: got '1.5B'; expected a whole number",
    (
        "policy:\n  threshold: 512",
        "limits: {leases: {node: 0s}}",
    ): "15: limits.leases.node: got '0s'; expected more than zero",
    ("127.0.0.1:8000", "8000"): "5: clusters.home.listen: got 8000; expected host:port",
    (
        "127.0.0.1:8000",
        "127.0.0.1:80000",
    ): "5: clusters.home.listen: got '127.0.0.1:80000'; expected a port from 1 to 65535",
    (HOME_DECODE, "d0"): "8: clusters.home.nodes[1]: got 'd0'; expected a mapping",
    (
        HOME_DECODE,
        "{name: d0, role: decode, engine: {device: tpu}}",
    ): "8: clusters.home.nodes[1].engine.device: got 'tpu'; ",
    (
        HOME_DECODE,
        "{name: d0, role: decode, engine: {threads: 0}}",
    ): "8: clusters.home.nodes[1].engine.threads: got 0; ",
    # what does not make sense together
    (HOME_DECODE, "{name: d0, role: prefill}"): "6: clusters.home.nodes: a pd cluster without a decode node; expected",
    (
        "f0, role: prefill",
        "f0, role: decode",
    ): "12: clusters.far.nodes[0].role: a prfaas cluster only prefills; expected",
    ("kind: pd", "kind: prfaas"): "8: clusters.home.nodes[1].role: a prfaas cluster only prefills",
    ("from: far", "from: fat"): "14: links[0].from: no cluster is called 'fat'; did you mean 'far'?",
    ("to: home", "to: mars"): "14: links[0].to: no cluster is called 'mars'; expected one of home, far",
    ("to: home", "to: far"): "14: links[0]: joins two prfaas clusters; expected one prfaas and one pd cluster",
    ("20ms}", "20ms}\n  - {from: far, to: home, bandwidth: 1bps, rtt: 0s}"): "15: links[1]: a second link far->home",
    (
        "links:\n  - {from: far, to: home, bandwidth: 1Gbps, rtt: 20ms}\n",
        "",
    ): "9: clusters.far: no link leads from it to a pd",
    ("from: far, to: home", "from: home, to: far"): "9: clusters.far: no link leads from it to a pd cluster",
    (
        "name: f0",
        "name: d0",
    ): "12: clusters.far.nodes[0].name: 'd0' is taken by a node of cluster home; expected another",
    (HOME_DECODE, "{name: d0, role: decode, listen: 'localhost:8000'}"): (
        "8: clusters.home.nodes[1].listen: port 8000 is taken by clusters.home.listen; expected another port"
    ),
    (HOME_DECODE, "{name: d0, role: decode, engine: {kv_blocks: 4, kv_memory: 1GiB}}"): (
        "8: clusters.home.nodes[1].engine.kv_memory: given together with kv_blocks; expected one of them"
    ),
    (
        "127.0.0.1:8000",
        "0.0.0.0:8000",
    ): "5: clusters.home.listen: 0.0.0.0:8000 is every interface; expected `advertise`",
    # YAML itself
    ("threshold: 512", "threshold: 512\n  threshold: 513"): "17: policy.threshold: given twice, first on line 16",
    ("  far:", "  home:"): "9: clusters.home: given twice, first on line 3",
    ("kind: pd", "kind: pd: pd"): "4: not valid YAML: mapping values are not allowed here",
    ("kind: pd", "8000: pd"): "4: key 8000 is not text; expected it in quotes",
    ("kind: pd", "[a]: pd"): "4: key that is a list or mapping is not text",
    ("kind: pd", "? {a: b}\n    : pd"): "4: key that is a list or mapping is not text",
    ("kind: pd", "kind: !!python/object:os.system x"): "4: clusters.home.kind: cannot read 'x' as ",
    ("kind: pd", "kind: *nobody"): "4: not valid YAML: found undefined alias",
    ("kind: pd", "<<: {kind: pd}"): "4: `<<` is not understood; expected the settings themselves",
    ("model: smollm2", "model: 2026-11-31"): "1: model: cannot read '2026-11-31' as ",
    ("model: smollm2", "model: 2026-11-30"): "1: model: got a date; expected text",
}


@pytest.mark.parametrize(("change", "expected"), FAULTS.items(), ids=[new.split("\n")[0] for _, new in FAULTS])
def test_faults(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    assert change[0] in GOOD
    assert fault(tmp_path, GOOD.replace(*change, 1)).startswith(expected)


def test_two_pd_clusters_and_no_pd_cluster(tmp_path: Path) -> None:
    alone = "model: m\nclusters:\n  far:\n    kind: prfaas\n    nodes: [{name: f0, role: prefill}]\n"
    assert fault(tmp_path, alone).startswith("2: clusters: no cluster has kind pd; expected at least one")
    twice = GOOD.replace("policy:", "    \npolicy:").replace(
        "  far:", "  away: {kind: pd, nodes: [{name: d1, role: decode}]}\n  far:"
    )
    assert [c.listen for c in read(tmp_path, twice).of_kind("pd").values()] == ["127.0.0.1:8000", "127.0.0.1:8001"]
    moved = read(tmp_path, twice, Overrides(port=9100)).of_kind("pd").values()
    assert [cluster.listen for cluster in moved] == ["127.0.0.1:9100", "127.0.0.1:9101"]
    with pytest.raises(ConfigError, match="port 65536 for the gateway of away; expected at most 65535"):
        read(tmp_path, twice, Overrides(port=65535))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: the file is empty"),
        ("# nothing\n", "1: the file is empty"),
        ("just text", "1: got 'just text'; expected a mapping"),
        ("- a\n- b\n", "1: got a list; expected a mapping"),
        ("a: 1\n---\nb: 2\n", "2: not valid YAML: but found another document"),
        ("b: 1\na: \x00", "2: not valid YAML: special characters are not allowed: '\\x00'"),
        ("a: [" * 5000, "1: nested too deeply"),
        ("x" * (300 << 10), "1: larger than 256 KiB"),
        ("a: &a [*a]\n", "1: a[0]: an alias that contains itself"),
        ("model: " + "9" * 5000, "1: model: cannot read "),
    ],
)
def test_files_that_are_no_topology(tmp_path: Path, text: str, expected: str) -> None:
    assert fault(tmp_path, text).startswith(expected)


def test_aliases_cannot_multiply(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]\n" for at in range(1, 10))
    assert "more than 20000 values" in fault(tmp_path, bomb)


def test_an_alias_is_good(tmp_path: Path) -> None:
    aliased = GOOD.replace(HOME_DECODE, "{name: d0, role: decode, engine: &e {threads: 2}}").replace(
        "name: f0,", "name: f0, engine: *e,"
    )
    assert read(tmp_path, aliased).clusters["far"].nodes[0].engine.threads == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; expected a topology file"):
        read_topology(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_topology(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"model: a\nx: \xff\n")
    with pytest.raises(ConfigError, match=r"b\.yaml:2: not UTF-8 text"):
        read_topology(tmp_path / "b.yaml")


LINES = GOOD.splitlines(keepends=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(GOOD) - 1), st.text("{}[]:,-&*!|>%@`'\" \n0aé", max_size=4), st.integers(0, 3))
def test_any_damage_is_read_or_refused_in_one_line(tmp_path: Path, at: int, new: str, cut: int) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(GOOD[:at] + new + GOOD[at + cut :])
    said = f"{file}:"
    try:
        read_topology(file)
    except ConfigError as error:
        said = str(error)
    assert said.startswith(f"{file}:")
    assert "\n" not in said
