"""Plan files: the examples are good, every fault is one line with its place and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas.config.reader import read_topology
from prfaas.config.topology import EmulatedEngine
from prfaas.core.errors import ConfigError
from prfaas.model.hf.load import CONFIGS, load_layout
from prfaas.model.profilefile import DIRECTORY
from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planreader import read_plan
from prfaas.plan.topologyfile import write_topology_file

from .conftest import PAPER, TWO_BY_TWO

Changed = Callable[..., Path]


@pytest.mark.parametrize("path", [PAPER, TWO_BY_TWO], ids=lambda path: path.stem)
def test_the_examples_are_good(path: Path) -> None:
    said, document = read_plan(path)
    assert read_inputs(said, document).batches.keys() == said.of_kind("pd").keys()


LINK = "{from: far, to: home, bandwidth: 100Gbps, rtt: 5ms}"
FAULTS = [
    ("nodes: 4", "nodes: 0", 15, "clusters.far.nodes: got 0; expected a whole number >= 1"),
    ("100Gbps", "100GBps", 26, "links[0].bandwidth: got '100GBps'; expected a bandwidth in bits a second with a unit"),
    ("kind: lognormal", "kind: normal", 8, "traffic.lengths.kind: got 'normal'; expected one of lognormal, trace"),
    ("sigma: 1.00", "sigma: -1", 8, "traffic.lengths.sigma: got -1; expected a number > 0.0"),
    ("least: 128", "least: 200000", 8, "got 131072, not above least (200000); expected more"),
    ("  output: 1024\n", "", 7, "`output` is missing; expected it here, since lengths are not from a trace"),
    ("kind: prfaas", "kind: pd", 11, "no cluster has kind prfaas; expected at least one, to plan with"),
    ("from: far", "from: away", 26, "no cluster is called 'away'; expected one of far"),
    ("to: home", "to: far", 26, "links[0].to: far is a prfaas cluster; expected one of kind pd"),
    (LINK, f"{LINK}\n  - {LINK}", 27, "links[1]: a second link far->home, after links[0]; expected one"),
    ("tpot: 25ms", "tpott: 25ms", 29, "slo.tpott: unknown setting; did you mean `tpot`?"),
    ("profile: paper-h20\n", "profile: paper-h21\n", 20, "clusters.home.profile: profile 'paper-h21': expected one of"),
    ("model: paper-1t", "model: paper-2t", 5, "model: paper-2t"),
    (
        "    gpus: 8\n\n",
        "    gpus: 8\n    decode_batch: 3\n\n",
        17,
        "a prfaas cluster only prefills; expected it in clusters",
    ),
    ("decode_batch: 20", "price: 3", 12, "`price` is missing; expected it here, since home has one"),
    (
        "rtt: 5ms}",
        "rtt: 5ms, price: 1}",
        26,
        "links[0].price: given, but no cluster has one; expected `price` in every",
    ),
    ("decode_batch: 20", "price: 0", 23, "clusters.home.price: got 0; expected a number >= 0.01"),
    ("decode_batch: 20", "price: 10000001", 23, "clusters.home.price: got 10000001; expected a number <= "),
    ("rtt: 5ms}", "rtt: 5ms, price: -1}", 26, "links[0].price: got -1; expected a number >= 0"),
    ("decode_batch: 20", "share: 0.5", 11, "the shares of the pd clusters sum to 0.5; expected 1"),
    ("decode_batch: 20", "kv_memory: 1MB", 23, "holds no sequence of 2"),
    (
        "decode_batch: 20",
        "decode_batch: 20\n    kv_memory: 1GB",
        23,
        "got 20; expected at most 1, which `kv_memory` holds",
    ),
    ("    decode_batch: 20\n", "", 28, "slo.tpot: got 1ms, but one sequence on home takes 25ms a token; expected more"),
]


@pytest.mark.parametrize(("old", "new", "line", "what"), FAULTS, ids=[fault[1].strip() or fault[0] for fault in FAULTS])
def test_faults_have_a_line_and_say_what_was_expected(
    changed: Changed, old: str, new: str, line: int, what: str
) -> None:
    pairs = [(old, new)] + ([("tpot: 25ms", "tpot: 1ms")] if "1ms" in what else [])
    path = changed(*pairs)
    with pytest.raises(ConfigError) as caught:
        read_inputs(*read_plan(path))
    said = str(caught.value)
    assert what in said
    assert "\n" not in said
    assert said.startswith(f"{path}:{line}: ")


def test_without_batch_and_slo_the_cluster_is_named(changed: Changed) -> None:
    path = changed(("    decode_batch: 20\n", ""), ("slo:\n  tpot: 25ms\n", ""))
    with pytest.raises(ConfigError, match=r"clusters\.home: nothing says how many sequences decode at once"):
        read_plan(path)


def test_the_slo_decides_the_batch_where_none_is_given(changed: Changed) -> None:
    """20 at 25 ms; beyond the largest batch of the profile a step grows with the batch."""
    for tpot, batch in (("25ms", 20), ("26ms", 20), ("30ms", 24), ("50ms", 40)):
        path = changed(("    decode_batch: 20\n", ""), ("tpot: 25ms", f"tpot: {tpot}"))
        assert read_inputs(*read_plan(path)).batches == {"home": batch}


def test_memory_bounds_the_batch(changed: Changed) -> None:
    path = changed(("decode_batch: 20", "kv_memory: 10GB"))
    inputs = read_inputs(*read_plan(path))
    context = round(inputs.workload.mean_context + 512)
    assert inputs.batches == {"home": 10 * 10**9 // inputs.kv_bytes(context)}


def test_files_are_found_beside_the_plan(changed: Changed, tmp_path: Path) -> None:
    rows = '{"timestamp": 0, "input_length": 2000, "output_length": 50, "hash_ids": [1, 2, 3, 4]}\n' * 3
    (tmp_path / "t.jsonl").write_text(rows)
    old = "{kind: lognormal, mu: 9.90, sigma: 1.00, least: 128, most: 131072}"
    path = changed((old, "{kind: trace, file: t.jsonl}"), ("  output: 1024\n", ""))
    workload = read_inputs(*read_plan(path)).workload
    assert workload.output == 50
    assert workload.lengths.tops == (1, 2000)
    assert workload.lengths.weights == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_a_trace_that_is_bad_is_refused_at_the_plans_line_and_its_own(changed: Changed, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("{}\n")
    old = "{kind: lognormal, mu: 9.90, sigma: 1.00, least: 128, most: 131072}"
    path = changed((old, "{kind: trace, file: t.jsonl}"))
    with pytest.raises(ConfigError, match=r"plan\.yaml:\d+: traffic\.lengths: .*t\.jsonl:1: .*; expected a row"):
        read_inputs(*read_plan(path))


def test_a_model_and_a_profile_of_ones_own(changed: Changed, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((DIRECTORY / "paper-h200.yaml").read_text().replace("paper-h200", "mine"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text((CONFIGS / "MiniMax-M2.5.json").read_text())
    path = changed(("profile: paper-h200", "profile: ./mine.yaml"), ("model: paper-1t", "model: ./model"))
    said, document = read_plan(path)
    inputs = read_inputs(said, document)
    assert inputs.profiles["far"].name == "mine"
    assert inputs.kv_bytes(32768) == load_layout("MiniMax-M2.5").bytes_at(32768)
    file = tmp_path / "topology.yaml"
    write_topology_file(Plan(inputs), file)
    engine = read_topology(file).clusters["far"].nodes[0].engine
    assert isinstance(engine, EmulatedEngine)
    assert engine.profile == str(tmp_path / "mine.yaml")
