"""Which engine a node has: kinds, what each may say, and what must be the same everywhere."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from prfaas.config.reader import read_topology, write_topology
from prfaas.config.schema import topology_schema
from prfaas.config.topology import POINTS, EmulatedEngine, Node, Topology, TransformersEngine
from prfaas.core.errors import ConfigError
from prfaas.engine.emulated.layouts import LAYOUTS
from prfaas.plan.planreader import read_plan

ROOT = Path(__file__).parents[2]


def text(p0: str, d0: str = "", model: str = "smollm2") -> str:
    second = f", engine: {d0}" if d0 else ""
    return (
        f"model: {model}\nclusters:\n  home:\n    kind: pd\n    nodes:\n"
        f"      - {{name: p0, role: prefill, engine: {p0}}}\n      - {{name: d0, role: decode{second}}}\n"
    )


def read(tmp_path: Path, said: str) -> Topology:
    file = tmp_path / "t.yaml"
    file.write_text(said)
    return read_topology(file)


def test_without_a_kind_it_is_transformers(tmp_path: Path) -> None:
    home = read(tmp_path, text("{threads: 2}")).clusters["home"]
    assert home.nodes[0].engine == TransformersEngine(threads=2)
    assert home.nodes[1].engine == TransformersEngine()
    jsonschema.validate(yaml.safe_load(text("{threads: 2}")), msgspec.json.decode(topology_schema()))


def test_emulated_and_back(tmp_path: Path) -> None:
    said = (
        "{kind: emulated, profile: ./fast.yaml, time_scale: 0.5, kv_memory: 1MiB, faults: [{at: landed, do: corrupt}]}"
    )
    topology = read(tmp_path, text(said, said, "emulated"))
    engine = topology.clusters["home"].nodes[0].engine
    assert isinstance(engine, EmulatedEngine)
    assert (engine.profile, engine.kv_budget_bytes) == (str(tmp_path / "fast.yaml"), 1 << 20)
    write_topology(topology, tmp_path / "again.yaml")
    assert read_topology(tmp_path / "again.yaml") == topology
    jsonschema.validate(yaml.safe_load(text(said, said)), msgspec.json.decode(topology_schema()))


@pytest.mark.parametrize(
    ("p0", "d0", "model", "what"),
    [
        (
            "{kind: emulate}",
            "",
            "m",
            "engine.kind: got 'emulate'; expected one of transformers, emulated, vllm (did you",
        ),
        ("{kind: 3}", "", "m", "engine.kind: got 3; expected one of transformers, emulated"),
        ("{threads: 0}", "", "m", "engine.threads: got 0; expected a whole number >= 1"),
        ("{profile: x}", "", "m", "engine.profile: unknown setting; expected one of "),
        ("{kind: emulated, profil: x}", "", "m", "engine.profil: unknown setting; did you mean `profile`?"),
        ("{kind: emulated, threads: 1}", "", "m", "engine.threads: unknown setting; expected one of "),
        ("{kind: emulated, layout: dens}", "", "m", "engine.layout: got 'dens'; expected one of dense, "),
        ("{kind: emulated, bytes_scale: 0}", "", "m", "engine.bytes_scale: got 0; expected a number > 0"),
        ("{kind: emulated, faults: [{at: x, do: die}]}", "", "m", "faults[0].at: got 'x'; expected one of start, "),
        ("{kind: emulated, faults: [{at: start, do: rest}]}", "", "m", "faults[0].do: got 'rest'; expected one of "),
        ("emulated", "", "m", "engine: got 'emulated'; expected a mapping"),
        ("{}", "", "emulated", "engine: model emulated has no weights; expected {kind: emulated}"),
        ("{kind: emulated}", "{}", "m", "makes other KV (transformers, float32) than node p0; expected emulated, "),
        ("{kind: emulated}", "{kind: emulated, layout: dense}", "m", "makes other KV (emulated, layout dense, "),
        ("{dtype: float16}", "{}", "m", "makes other KV (transformers, float32) than node p0; expected "),
        (
            "{kind: emulated, faults: [{at: landed, do: wrong_token}]}",
            "{kind: emulated}",
            "m",
            "faults[0].do: no token is made at landed; expected `at: decode:token`",
        ),
    ],
)
def test_what_is_wrong_is_said_where(tmp_path: Path, p0: str, d0: str, model: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text(p0, d0, model))
    assert what in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 't.yaml'}:{7 if 'makes other' in what else 6}: ")


def test_layouts_and_points_are_those_that_there_are() -> None:
    schema = msgspec.json.decode(topology_schema())["$defs"]
    assert schema["EmulatedEngine"]["properties"]["layout"]["enum"] == sorted(LAYOUTS)
    for point in POINTS:
        fault = {"at": point.replace(":N", ":3"), "do": "stall"}
        node = {"name": "n", "role": "decode", "engine": {"kind": "emulated", "faults": [fault]}}
        assert msgspec.convert(node, Node).engine.faults[0].at == fault["at"]  # type: ignore[union-attr]


def test_the_examples_are_good() -> None:
    plans = [file for file in (ROOT / "examples").glob("*.yaml") if "\ntraffic:" in file.read_text()]
    assert len(plans) > 1
    for file in plans:
        read_plan(file)
    for file in set((ROOT / "examples").glob("*.yaml")) - set(plans):
        read_topology(file)
        jsonschema.validate(yaml.safe_load(file.read_text()), msgspec.json.decode(topology_schema()))
