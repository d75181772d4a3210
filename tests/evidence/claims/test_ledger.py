"""The ledger always has its 35 rows, in order, whatever was or was not measured."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from tests.synthetic import Truth, configuration, fabricate, measured

from breakeven import io
from breakeven.evidence.claims import ledger, load_claims, markdown
from breakeven.evidence.claims.facts import VERDICTS
from breakeven.evidence.claims.ledger import ARITHMETIC, DECISIONS
from breakeven.evidence.summary import facts, summarize

IDS = [f"SD{i}" for i in range(1, 11)] + [f"KV{i}" for i in range(1, 11)]
IDS += [f"TK{i}" for i in range(1, 5)] + [f"GD{i}" for i in range(1, 12)]


@pytest.fixture(scope="module")
def seen():
    truth = Truth(categories=("qa", "math", "code"), ks=(1, 4))
    tables = measured(fabricate(truth))
    return facts(tables, summarize(tables, configuration(truth)))


def _with_source(seen, kind):
    lock = json.loads(json.dumps(seen.lock))
    lock["models"]["target"]["source"]["kind"] = kind
    return dataclasses.replace(seen, lock=lock)


def test_all_35_claims_in_order(seen):
    assert [claim.id for claim in load_claims()] == IDS
    assert [row["id"] for row in ledger(seen)] == IDS


def test_every_verdict_is_a_known_one_with_a_reason(seen):
    for row in ledger(seen):
        assert row["verdict"] in VERDICTS and row["reason"] and row["measured"] and row["published"], row["id"]
        if row["verdict"] in {"reproduced", "contradicted", "partly"}:
            assert row["artefact"], row["id"]


def test_every_claim_is_decided_by_a_rule_or_says_what_it_waits_for():
    for claim in load_claims():
        assert claim.id in DECISIONS or claim.waits_for, claim.id
    assert set(DECISIONS) <= set(IDS)


def test_every_rule_documents_itself():
    for name, rule in DECISIONS.items():
        assert rule.__doc__ and len(rule.__doc__.split()) >= 15, name


def test_claims_that_these_stages_can_decide_are_decided(seen):
    pending = {row["id"] for row in ledger(seen) if row["verdict"] == "pending"}
    decidable = {"SD1", "SD2", "SD3", "SD4", "SD5", "SD6", "SD7", "SD9", "KV1", "KV2", "KV3", "GD1", "GD7", "GD10"}
    assert not pending & decidable


def test_random_weights_decide_arithmetic_only(seen):
    rows = {row["id"]: row for row in ledger(_with_source(seen, "random"))}
    decided = {i for i, row in rows.items() if row["verdict"] in {"reproduced", "contradicted", "partly"}}
    assert decided == ARITHMETIC
    assert "random" in rows["SD1"]["measured"]
    numbers = " ".join(rows[i]["measured"] for i in ARITHMETIC)
    assert not re.search(r"\d\.\d\dx", numbers), "a random model's speedup must not appear as a measurement"


def test_nothing_measured_still_gives_35_rows(seen):
    rows = ledger(seen.without_measurements())
    assert [row["id"] for row in rows] == IDS
    assert {row["id"] for row in rows if row["verdict"] in {"reproduced", "contradicted", "partly"}} == ARITHMETIC


def test_artefacts_are_files_that_the_pipeline_makes(seen):
    root = Path(__file__).parents[3]
    graph = (root / "dvc.yaml").read_text(encoding="utf-8")
    for row in ledger(seen):
        if row["artefact"]:
            assert row["artefact"] in graph or (root / row["artefact"]).is_file(), row["artefact"]


def test_markdown_has_a_line_a_claim_and_no_broken_cell(seen):
    text = markdown(ledger(seen), seen)
    lines = [line for line in text.splitlines() if re.match(r"\| (SD|KV|TK|GD)\d", line)]
    assert len(lines) == 35
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 8 for line in lines)


def test_ledger_is_valid_json(seen, tmp_path):
    io.write_json(tmp_path / "claims.json", ledger(seen))
    assert len(io.read_json(tmp_path / "claims.json")) == 35
