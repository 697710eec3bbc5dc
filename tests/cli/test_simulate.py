"""`prfaas simulate`: its options, its JSON, and one line for each fault."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from prfaas.cli.main import cli
from prfaas.sim.run import Outcome, Run, perform
from prfaas.sim.schema import scenario_schema, simulate_schema

ROOT = Path(__file__).parents[2]
PAPER = str(ROOT / "examples" / "paper.yaml")
USERS = ", users: 3"
SEARCH = ("--find-max", "--slo", "ttft_p90<5s")
SCHEMAS = {"simulate": simulate_schema, "scenario": scenario_schema}


def simulate(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["simulate", *arguments], prog_name="prfaas")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def said(*arguments: str) -> dict[str, object]:
    code, out, err = simulate(*arguments, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    jsonschema.validate(found, json.loads(simulate_schema()))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_file_in_docs_is_current(name: str) -> None:
    stored = (ROOT / "docs" / "schemas" / f"{name}.json").read_text()
    assert stored == SCHEMAS[name](), f"stale; write it anew: prfaas schema {name} > docs/schemas/{name}.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(stored))


def test_json_has_what_was_promised_and_is_the_same_again() -> None:
    arguments = (PAPER, "--load", "0.5", "--duration", "120s", "--seed", "7")
    found = said(*arguments)
    assert {
        *("policy", "seed", "offered_rps", "completed", "ttft_s", "tpot_s", "goodput_rps", "egress_gbps"),
        *("offloaded", "hit_share", "events", "wall_s"),
    } <= set(found)
    assert (found["policy"], found["seed"]) == ("ours", 7)
    assert found["completed"] == found["arrived"]
    assert set(found["ttft_s"]) == {"mean", "p50", "p90", "p99"}  # type: ignore[call-overload]
    again = said(*arguments)
    assert {**found, "wall_s": 0} == {**again, "wall_s": 0}
    assert said(*arguments[:-1], "8")["ttft_s"] != found["ttft_s"]


def test_text_names_the_policy_and_its_reasons() -> None:
    code, out, _ = simulate(PAPER, "--policy", "threshold", "--rate", "1", "--duration", "100")
    assert code == 0
    assert out.startswith("threshold, seed 1: 1.000 requests a second offered, 32% of Lambda_max (3.161)")
    assert re.search(r"decisions: long \d+, short \d+", out)


def test_compare_runs_all_on_the_same_requests() -> None:
    found = said(PAPER, "--compare", "threshold,local,ours", "--seeds", "2", "--duration", "60s")
    assert found["seeds"] == [1, 2]
    rows = found["compared"]
    assert list(rows) == ["threshold", "local", "ours"]  # type: ignore[call-overload]
    assert rows["threshold"]["ttft_mean"]["less"] == 0  # type: ignore[index]
    assert rows["local"]["ttft_mean"]["less"] < 0  # type: ignore[index]
    code, out, _ = simulate(PAPER, "--compare", "threshold,ours", "--seeds", "1", "--duration", "60s")
    assert code == 0
    assert "seed 1; seconds" in out


def test_find_max_ends_between_what_met_and_what_did_not() -> None:
    found = said(PAPER, "--find-max", "--slo", "ttft_p90<5s", "--duration", "200s")
    tried = found["tried"]
    best = max(one["rate"] for one in tried if one["met"])  # type: ignore[attr-defined,index]
    worst = min(one["rate"] for one in tried if not one["met"])  # type: ignore[attr-defined,index]
    assert found["highest_rps"] == best < worst


@pytest.mark.parametrize(
    ("slo", "edge", "words"),
    [
        ("ttft_p90<1ms", "low", "not even at 0.01 requests a second, 0.3% of Lambda_max, the lowest tried"),
        ("ttft_p90<100h", "high", "at more than 4.73 requests a second, 150% of Lambda_max, the highest tried"),
        ("ttft_p90<5s", None, " requests a second, "),
    ],
)
def test_find_max_tells_the_ends_of_its_range(slo: str, edge: str | None, words: str) -> None:
    arguments = (PAPER, "--find-max", "--slo", slo, "--duration", "200s")
    found = said(*arguments)
    assert found["edge"] == edge
    assert (found["highest_rps"] is None, found["missed_rps"] is None) == (edge == "low", edge == "high")
    code, out, _ = simulate(*arguments)
    assert code == 0
    assert words in out
    assert not re.search(r"second, .*\.\d{3}|\d\.\d{3} requests", out)


def interrupt(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Ctrl-C at 50 simulated seconds of the run after `runs` whole ones."""
    done = iter(range(1000))

    def log(now_ns: int, *_: object) -> None:
        if now_ns > 50 * 10**9:
            raise KeyboardInterrupt

    def until_then(run: Run) -> Outcome:
        return perform(run, log if next(done) >= runs else None)

    for module in ("prfaas.cli.simulate", "prfaas.sim.run"):
        monkeypatch.setattr(sys.modules[module], "perform", until_then)


def test_one_run_that_is_interrupted_tells_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, 0)
    code, out, _ = simulate(PAPER, "--json")
    found = json.loads(out)
    assert (code, found["interrupted"]) == (1, True)
    assert found["measured"] > 0
    assert found["ttft_s"]["mean"] > 0
    assert found["goodput_rps"] > 0


def test_find_max_that_is_interrupted_tells_the_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (PAPER, "--find-max", "--slo", "ttft_p90<5s", "--duration", "200s")
    interrupt(monkeypatch, 2)
    code, out, _ = simulate(*arguments)
    assert code == 1
    assert re.fullmatch(r"ours: ttft_p90<5s interrupted: met at [\d.]+ requests a second, missed at [\d.]+\n", out)
    interrupt(monkeypatch, 0)
    code, out, _ = simulate(*arguments, "--json")
    found = json.loads(out)
    assert (code, found["interrupted"], found["edge"], found["tried"]) == (1, True, None, [])


def test_compare_that_is_interrupted_tells_whole_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (PAPER, "--compare", "local,ours", "--seeds", "3", "--duration", "60s")
    interrupt(monkeypatch, 3)
    code, out, err = simulate(*arguments, "--json")
    found = json.loads(out)
    assert (code, found["interrupted"], found["seeds"]) == (1, True, [1])
    assert err == "interrupted: 1 of 3 seeds\n"
    interrupt(monkeypatch, 1)
    assert simulate(*arguments) == (1, "", "interrupted: 0 of 3 seeds\n")


def test_a_replay_has_no_interval(tmp_path: Path) -> None:
    code, out, _ = simulate(PAPER, "--trace", str(trace(tmp_path / "trace.jsonl")), "--compare", "local,ours")
    assert code == 0
    assert "±" not in out
    assert "a trace is the same for every seed: no interval" in out


def test_a_scenario_changes_arrivals_and_brings_faults(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "arrivals: {kind: mmpp, factor: 4}\nloss: 0.01\nfaults:\n"
        "  - {kind: link, cluster: far, target: home, at: 30s, lasts: 30s, bandwidth: 100Mbps}\n"
        "  - {kind: service_down, cluster: far, at: 20s, lasts: 5s}\n"
    )
    found = said(PAPER, "--scenario", str(file), "--duration", "120s", "--load", "1.5")
    plain = said(PAPER, "--duration", "120s", "--load", "1.5")
    assert found["arrived"] != plain["arrived"]
    assert int(found["retried"]) > 0  # type: ignore[call-overload]
    assert found["egress_gbps"]["mean"] < plain["egress_gbps"]["mean"]  # type: ignore[index]


@pytest.mark.parametrize("kind", ["even", "bursts", "diurnal", "poisson"])
def test_every_kind_of_arrival_comes_at_the_rate(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(f"arrivals: {{kind: {kind}{USERS * (kind == 'users')}}}\n")
    found = said(PAPER, "--scenario", str(file), "--duration", "1800s", "--rate", "0.5", "--policy", "remote")
    assert abs(int(found["arrived"]) - 900) < 130  # type: ignore[call-overload]


@pytest.mark.parametrize("way", ["--balance", "--scenario"])
def test_balance_tells_who_worked_and_why(tmp_path: Path, way: str) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("balance: {rule: ratio, every: 2m, window: 6m, cost: 30s}\n")
    arguments = (way, "ratio" if way == "--balance" else str(file))
    found = said(PAPER, "--rate", "1.5", "--duration", "10m", *arguments)
    balance = found["balance"]
    assert balance["rule"] == "ratio"  # type: ignore[index]
    assert balance["staff"][0] == {"at_s": 0, "prefill": 3, "decode": 5}  # type: ignore[index]
    looks = 2 if way == "--balance" else 5
    assert sum(balance["looks"].values()) == looks  # type: ignore[index]
    assert said(PAPER, "--rate", "1.5", "--duration", "10m")["balance"] is None
    code, out, _ = simulate(PAPER, "--rate", "1.5", "--duration", "10m", *arguments)
    assert code == 0
    assert "\nbalance ratio: " in out


def test_several_pd_clusters_cannot_be_balanced(tmp_path: Path) -> None:
    file = str(trace(tmp_path / "trace.jsonl"))
    code, _, err = simulate(EMULATED, "--trace", file, "--balance", "ours")
    assert code == 2
    assert "got 2 PD clusters; expected one" in err
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("loss: 0.1\nbalance: {}\n")
    code, _, err = simulate(EMULATED, "--trace", file, "--scenario", str(scenario))
    assert code == 2
    assert f"{scenario}:2: balance: got 2 PD clusters" in err


def test_chunks_let_short_prompts_pass_long_ones(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("prefill: {chunk: 8192, prompts: 4}\n")
    arguments = (PAPER, "--duration", "600s", "--load", "0.8", "--policy", "threshold")
    found, plain = said(*arguments, "--scenario", str(file)), said(*arguments)
    assert found["completed"] == plain["completed"]
    assert found["ttft_s"]["p50"] != plain["ttft_s"]["p50"]  # type: ignore[index]
    assert found["queue_wait_s"]["mean"] < plain["queue_wait_s"]["mean"]  # type: ignore[index]


def test_no_room_and_lost_leases_are_told(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "cache: 100MB\nlease: 5s\nfaults: [{kind: link, cluster: far, target: home, at: 1s, lasts: 30s}]\n"
    )
    file = str(trace(tmp_path / "trace.jsonl"))
    found = said(PAPER, "--trace", file, "--policy", "remote", "--scenario", str(scenario))
    assert int(found["no_room"]) >= 40  # type: ignore[call-overload]
    scenario.write_text(scenario.read_text().replace("100MB", "1TB"))
    found = said(PAPER, "--trace", file, "--policy", "remote", "--scenario", str(scenario))
    assert found["no_room"] == 0
    assert int(found["expired"]) > 0  # type: ignore[call-overload]
    assert found["completed"] == 40


def trace(path: Path, rows: int = 40) -> Path:
    lines = []
    for at in range(rows):
        blocks = list(range(8)) if at % 2 else [1000 + at * 10 + k for k in range(8)]
        lines.append(json.dumps({"timestamp": at * 500, "input_length": 4000, "output_length": 20, "hash_ids": blocks}))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_is_replayed_with_its_hits(tmp_path: Path) -> None:
    file = str(trace(tmp_path / "trace.jsonl"))
    found = said(PAPER, "--trace", file, "--policy", "local")
    assert found["arrived"] == 40
    assert found["offered_rps"] == 2
    assert 0.3 < float(found["hit_share"]) < 0.5  # type: ignore[arg-type]
    faster = said(PAPER, "--trace", file, "--policy", "local", "--rate", "4")
    assert faster["arrived"] == 40
    assert faster["offered_rps"] == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nowhere.yaml",), "nowhere.yaml"),
        ((PAPER, "--rate", "1", "--load", "1"), "got --rate and --load; expected one of them"),
        ((PAPER, "--rate", "0"), "--rate"),
        ((PAPER, "--rate", "nan"), "--rate: got 'nan'; expected a number above 0, at most 1,000,000"),
        ((PAPER, "--rate", "inf"), "--rate: got 'inf'; expected a number above 0"),
        ((PAPER, "--rate", "1e300"), "--rate: got '1e300'; expected a number above 0"),
        ((PAPER, "--load", "nan"), "--load: got 'nan'; expected a number above 0, at most 10"),
        ((PAPER, "--order", "nan"), "--order: got 'nan'; expected a number from 0 to 1,000"),
        ((PAPER, "--rate", "fast"), "--rate: got 'fast'; expected a number above 0"),
        ((PAPER, "--compare", ""), "got ''; expected some of ours, paper"),
        ((PAPER, "--compare", "ours,local", "--policy", "ours"), "got --compare and --policy; expected one of them"),
        ((PAPER, "--seeds", "5"), "got --seeds without --compare"),
        ((PAPER, *SEARCH, "--compare", "ours,local"), "got --find-max and --compare; expected one of them"),
        ((PAPER, *SEARCH, "--rate", "1"), "got --find-max with --rate or --load; expected none"),
        ((PAPER, *SEARCH, "--load", "1"), "got --find-max with --rate or --load; expected none"),
        ((PAPER, "--find-max"), "got one of --find-max and --slo"),
        ((PAPER, "--find-max", "--slo", "ttft<5s"), "expected a metric (ttft_mean"),
        ((PAPER, "--find-max", "--slo", "ttft_p90<5"), "expected a duration with a unit"),
        ((PAPER, "--duration", "soon"), "expected a duration with a unit"),
        ((PAPER, "--compare", "ours,best"), "got 'best'; expected some of ours, paper"),
        ((PAPER, "--compare", "ours,ours"), "expected each policy once"),
        ((PAPER, "--policy", "best"), "--policy"),
        ((PAPER, "--trace", "nowhere.jsonl"), "nowhere.jsonl: no such file; expected a trace"),
    ],
)
def test_a_fault_of_the_command_line_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    code, out, err = simulate(*arguments)
    assert code == 2
    assert out == ""
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("faults: [{kind: link, cluster: far, at: 1s, lasts: 1s}]", ":1: faults[0]"),
        ("faults: [{kind: node_down, cluster: near, at: 1s, lasts: 1s}]", "expected one of home, far"),
        ("faults: [{kind: node_down, cluster: far, node: 4, at: 1s, lasts: 1s}]", "got 4; expected less than 4"),
        ("faults: [{kind: fire, cluster: far, at: 1s, lasts: 1s}]", "faults[0].kind"),
        ("arrivals: {kind: bursts, length: 3m, every: 1m}", "arrivals.length: got no less than `every`"),
        ("arrivals: {kind: steady}", "arrivals"),
        ("loss: 1", "loss"),
        ("balance: {rule: best}", "balance.rule"),
        ("prefill: {chunk: 0}", "prefill.chunk"),
        ("speed: 3", "speed"),
    ],
)
def test_a_fault_of_the_scenario_names_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(text + "\n")
    code, out, err = simulate(PAPER, "--scenario", str(file))
    assert (code, out) == (2, "")
    assert err.startswith(f"{file}:1: ")
    assert err.count("\n") == 1
    assert expected in err


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("users", ("--rate", "1"), "got users with --rate or --load; expected it without"),
        ("users", ("--load", "0.5"), "got users with --rate or --load; expected it without"),
        ("users", SEARCH, "got users with --find-max; expected it without"),
        ("users", ("--trace",), "got some with a trace; expected none"),
        ("bursts", ("--trace",), "got some with a trace; expected none"),
    ],
)
def test_only_one_thing_says_when_requests_come(
    tmp_path: Path, kind: str, options: tuple[str, ...], expected: str
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(f"loss: 0.001\narrivals: {{kind: {kind}{USERS * (kind == 'users')}}}\n")
    if options == ("--trace",):
        options = ("--trace", str(trace(tmp_path / "trace.jsonl")))
    code, out, err = simulate(PAPER, "--scenario", str(file), *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{file}:2: arrivals: {expected}")


def test_a_trace_is_the_same_for_every_seed(tmp_path: Path) -> None:
    file = str(trace(tmp_path / "trace.jsonl"))
    code, _, err = simulate(PAPER, "--trace", file, "--compare", "ours,local", "--seeds", "3")
    assert code == 2
    assert "got --seeds with a trace; expected it without" in err


def test_a_trace_that_comes_at_once_has_no_rate(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(20 * '{"timestamp": 7, "input_length": 10, "output_length": 1}\n')
    found = said(PAPER, "--trace", str(file))
    assert found["offered_rps"] is None
    assert float(found["goodput_rps"]) > 0  # type: ignore[arg-type]
    assert "all requests at once; Lambda_max (" in simulate(PAPER, "--trace", str(file))[1]
    for options in (("--rate", "1"), SEARCH):
        code, out, err = simulate(PAPER, "--trace", str(file), *options)
        assert (code, out) == (2, "")
        assert "a trace whose rows come all at once" in err


def test_a_bad_row_of_a_trace_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 10, "output_length": 1}\n{"timestamp": 0, "input_length": 0}\n')
    code, _, err = simulate(PAPER, "--trace", str(file))
    assert code == 2
    assert err.startswith(f"{file}:2: ")


EMULATED = str(ROOT / "examples" / "two-by-two.yaml")


@pytest.mark.parametrize("file", [PAPER, EMULATED], ids=["plan", "topology"])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"timestamp": 400, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]},
            "timestamp: got 400, after 500 above it; expected rows in the order of time",
        ),
        (
            {"timestamp": 500, "input_length": 600, "output_length": 1, "hash_ids": [1, 2, 3]},
            "hash_ids: got 3 for 600 tokens; expected 2, one for each block of 512 tokens",
        ),
        ({"timestamp": 500, "input_length": 600, "output_length": -1}, "output_length"),
    ],
)
def test_rows_of_a_trace_are_checked_whatever_the_file(
    tmp_path: Path, file: str, row: dict[str, object], expected: str
) -> None:
    path = trace(tmp_path / "trace.jsonl", 2)
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    code, out, err = simulate(file, "--trace", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{path}:3: ")
    assert expected in err


def test_a_hash_id_stands_for_whole_blocks_of_the_nodes(tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    text = (ROOT / "examples" / "two-by-two.yaml").read_text()
    changed = text.replace("kind: emulated", "kind: emulated, block_tokens: 96", 1)
    assert changed != text
    topology.write_text(changed)
    code, _, err = simulate(str(topology), "--trace", str(trace(tmp_path / "trace.jsonl")))
    assert code == 2
    assert "engine.block_tokens: got 96; expected a divisor of 512" in err


def test_a_topology_of_emulated_nodes_runs_with_a_trace(tmp_path: Path) -> None:
    file = str(trace(tmp_path / "trace.jsonl", 200))
    found = said(EMULATED, "--trace", file, "--policy", "ours")
    assert found["completed"] == 200
    assert set(found["use"]) == {"east", "west", "north", "south"}  # type: ignore[call-overload]
    assert found["tpot_s"]["p50"] == 0.00125  # type: ignore[index]  # 25 ms at a time scale of 0.05


def test_a_topology_says_the_policy_unless_options_do(tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    text = Path(EMULATED).read_text()
    changed = text.replace("policy:\n", "policy:\n  kind: threshold\n").replace("threshold: 2000", "threshold: 4500")
    assert "kind: threshold\n  threshold: 4500" in changed
    topology.write_text(changed)
    arguments = (str(topology), "--trace", str(trace(tmp_path / "trace.jsonl")))  # of 4000 tokens each
    found = said(*arguments)
    assert found["policy"] == "threshold"
    assert found["decisions"] == {"short": 40}
    assert "long" in said(*arguments, "--threshold", "1000")["decisions"]  # type: ignore[operator]
    assert said(*arguments, "--policy", "remote")["decisions"] == {"remote": 40}


@pytest.mark.parametrize(
    ("file", "more", "expected"),
    [
        (EMULATED, False, "a topology says nothing of requests; expected --trace too"),
        (str(ROOT / "examples" / "two-clusters.yaml"), True, "engine: not emulated; expected `kind: emulated`"),
    ],
)
def test_a_topology_that_cannot_be_simulated_says_why(tmp_path: Path, file: str, more: bool, expected: str) -> None:
    arguments = ("--trace", str(trace(tmp_path / "trace.jsonl"))) if more else ()
    code, out, err = simulate(file, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err
