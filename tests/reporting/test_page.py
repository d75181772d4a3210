"""The page: self-contained, safe, accessible, the same bytes each time, whatever a run left out."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests import synthetic

from breakeven.reporting.data import Results
from breakeven.reporting.page import VERDICTS, cell, render, write
from helpers import reported

ROOT = Path(__file__).parents[2]
VOID = {"meta", "img", "br", "wbr"}


class Reader(HTMLParser):
    """Reads a page: tags with attributes, text, and whether every element is closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    return render(results)[0]


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_the_page_needs_nothing_but_itself(page: str, reader: Reader) -> None:
    assert not reader.of("script")
    assert not reader.of("link")
    assert not reader.of("iframe")
    assert all((image["src"] or "").startswith("data:image/svg+xml;base64,") for image in reader.of("img"))
    assert all((link["href"] or "").startswith("#") for link in reader.of("a"))
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)
    assert "@import" not in page
    assert "url(" not in page
    assert len(page.encode()) < 2_000_000


def test_elements_are_closed_and_fragments_lead_somewhere(reader: Reader) -> None:
    assert reader.open == []
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(link["href"] or "")[1:] for link in reader.of("a")} <= set(ids)
    labelled = [a["aria-labelledby"] for _, a in reader.tags if "aria-labelledby" in a]
    assert labelled
    assert set(labelled) <= set(ids)


def test_what_a_screen_reader_and_a_phone_need(reader: Reader) -> None:
    assert [html["lang"] for html in reader.of("html")] == ["en"]
    assert "width=device-width" in str([meta.get("content") for meta in reader.of("meta")])
    assert len(reader.of("img")) == 12
    assert all(len(image["alt"] or "") > 30 for image in reader.of("img"))
    assert all(head.get("scope") in {"col", "row"} for head in reader.of("th"))
    regions = [a for a in reader.of("div") if a.get("class") == "scroll"]
    assert len(regions) == 10
    assert all(region.get("tabindex") == "0" and region.get("role") == "region" for region in regions)


def test_style_keeps_text_at_sixteen_pixels_on_screen(page: str) -> None:
    css = page[page.index("<style>") : page.index("</style>")]
    screen = css[: css.index("@media print {")]
    sizes = re.findall(r"font(?:-size)?:\s*(?:clamp\()?([\d.]+)rem", screen)
    assert len(sizes) >= 4
    assert all(float(size) >= 1.0 for size in sizes)


def luminance(color: str) -> float:
    """Relative luminance of #rgb or #rrggbb (WCAG 2.2)."""
    digits = color[1:] if len(color) == 7 else "".join(digit * 2 for digit in color[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_text_stands_out_from_its_ground(mode: str, page: str) -> None:
    """WCAG AA: 4.5 to 1, in the light, the dark and the printed page."""
    css = page[page.index("<style>") : page.index("</style>")]
    blocks = [
        dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    ]
    assert len(blocks) == 3
    colors = blocks[("light", "dark", "print").index(mode)]
    pairs = [(ink, ground) for ink in ("ink", "soft", "link") for ground in ("paper", "shade")]
    pairs += [("good", "good-bg"), ("bad", "bad-bg"), ("open", "open-bg"), ("ink", "none-bg"), ("ink", "bad-bg")]
    for ink, ground in pairs:
        light, dark = sorted((luminance(colors[ink]), luminance(colors[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (mode, ink, ground)


def test_the_ledger_shows_all_claims_in_order_with_a_verdict_in_words(reader: Reader) -> None:
    ids = [(attributes["id"] or "") for attributes in reader.of("tr") if "id" in attributes]
    assert ids == [f"claim-{claim}" for claim in reported.CLAIM_IDS]
    assert len(ids) == 35
    for sign, words in VERDICTS.values():
        assert f"{sign} {words}" in reader.text


def test_verdict_signs_differ_without_colour() -> None:
    assert len({sign for sign, _ in VERDICTS.values()}) == len(VERDICTS)


def test_names_from_outside_cannot_become_markup(no_ink: None) -> None:
    evil = "<img src=x onerror=alert(1)>"
    truth = synthetic.Truth(
        model=evil, drafters={evil: synthetic.DrafterTruth({"<b>": '"</td>'}, 0.5, 0.1)}, ks=(1,), temperatures=(0.0,)
    )
    claims = [{**row, "claim": evil, "measured": evil, "artefact": evil} for row in reported.claims()]
    audits: Any = [{"audit": evil, "passed": False, "detail": evil}]
    config = reported.config(model__name=evil, experiment=evil)
    page, _ = render(reported.results(truth, claims=claims, audits=audits, config=config))
    reader = Reader(page)
    assert all("onerror" not in image for image in reader.of("img"))
    assert not reader.of("b")
    assert reader.open == []
    assert evil in reader.text


@pytest.mark.parametrize("text", ["a_b (1–2)", "<x> (1–2)", "<x>", "n_k (layer 3)", ""])
def test_cells_are_escaped_and_keep_their_text(text: str) -> None:
    reader = Reader(f"<p>{cell(text)}</p>")
    assert "".join(reader.words) == text
    assert not reader.of("x")


def test_failed_audits_warn_at_the_top(results: Results, no_ink: None) -> None:
    audits: Any = [{"audit": "greedy_identity", "passed": False, "detail": "3 of 56"}]
    text = Reader(render(dataclasses.replace(results, audits=audits))[0]).text
    assert text.index("Warning. 1 audit of 1 failed") < text.index("At a glance How it was measured")
    assert "✗ failed greedy identity" in text


RUNS: dict[str, Results] = {
    "one drafter": reported.results(synthetic.Truth(drafters={"ngram": synthetic.DrafterTruth({}, 0.6, 0.0)}, ks=(1,))),
    "three drafters": reported.results(
        synthetic.Truth(
            drafters={**synthetic.Truth().drafters, "small_lm": synthetic.DrafterTruth({}, 0.7, 0.2)}, ks=(2,)
        )
    ),
    "one temperature": reported.results(synthetic.Truth(temperatures=(0.8,), ks=(1, 2))),
    "no calibrated run": reported.results(synthetic.Truth(calibrated=False, ks=(1, 2))),
    "one category, one prompt": reported.results(synthetic.Truth(categories=("code",), ks=(1,))),
    "nothing at all": Results(config=reported.config()),
    "random model": reported.results(
        synthetic.Truth(ks=(1,)),
        config=reported.config(
            model__source={
                "kind": "random",
                "random": {
                    "architecture": "llama",
                    "seed": 7,
                    "layers": 4,
                    "hidden": 64,
                    "query_heads": 4,
                    "kv_heads": 2,
                    "head_dim": 16,
                    "max_context_tokens": 2048,
                },
            }
        ),
    ),
}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_any_subset_of_a_run_makes_a_sound_page(name: str, no_ink: None) -> None:
    page, _ = render(RUNS[name])
    reader = Reader(page)
    assert reader.open == []
    assert not re.search(r"\b(None|nan|inf)\b", reader.text)
    if name == "nothing at all":
        assert "Speculative decoding was not measured in this run." in reader.text
        assert reader.text.count("Not drawn, since this run holds no such data") == 4
    assert ("nothing was learnt about language models" in reader.text) == (name == "random model")


def nulled(rows: list[Any], keep: set[str]) -> list[Any]:
    """Set every float and every optional field of all rows to null, as a run that could not time anything leaves it."""
    return [
        {
            key: None if (isinstance(value, float) or value is None) and key not in keep else value
            for key, value in r.items()
        }
        for r in rows
    ]


def test_nulls_everywhere_read_not_measured(results: Results, no_ink: None) -> None:
    page, _ = render(
        dataclasses.replace(
            results,
            speculative=nulled(results.speculative, {"temperature"}),
            acceptance=nulled(results.acceptance, {"temperature"}),
            costs=nulled(results.costs, set()),
            kv_error=nulled(results.kv_error, set()),
        )
    )
    text = Reader(page).text
    assert "not measured" in text
    assert not re.search(r"\b(None|nan|null)\b", text)
    assert " pays at" not in text


@pytest.mark.parametrize("field", ["speedup_low", "alpha", "v_verify", "n_divergences"])
def test_single_null_columns_do_not_break_the_page(field: str, results: Results, no_ink: None) -> None:
    rows: Any = [{**row, field: None} if i % 2 else row for i, row in enumerate(results.speculative)]
    assert Reader(render(dataclasses.replace(results, speculative=rows))[0]).open == []


def test_no_sentence_of_the_template_holds_a_result() -> None:
    """A number in the template could only be a result written down: there the text stands for every run."""
    template = (ROOT / "src/breakeven/reporting/assets/report.html").read_text(encoding="utf-8")
    prose = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", "", template, flags=re.DOTALL)
    assert re.findall(r"\d", prose) == []


def test_figures_of_an_earlier_run_go(tmp_path: Path, no_ink: None, results: Results) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "gone.svg").write_text("<svg/>")
    write(results, tmp_path)
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert len(names) == 12
    assert "gone.svg" not in names
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_empty_channels_table_is_no_error(results: Results, no_ink: None) -> None:
    page, plots = render(dataclasses.replace(results, channels=pd.DataFrame()))
    assert "outlier channels" in Reader(page).text
    assert "kv_outlier_channels" not in {plot.name for plot in plots}


_PAGE_DIGEST = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from helpers import reported
from tests import synthetic
from breakeven.reporting.page import render
page, plots = render(reported.results(synthetic.Truth(ks=(1, 2, 4))))
print(hashlib.sha256(page.encode()).hexdigest())
"""


@pytest.mark.slow
def test_another_process_with_another_hash_seed_writes_the_same_bytes(page: str) -> None:
    """Python orders sets by a hash that differs between processes unless the seed is fixed."""
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    printed = subprocess.run(
        [sys.executable, "-c", _PAGE_DIGEST, str(ROOT), str(ROOT / "tests")],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == hashlib.sha256(page.encode()).hexdigest()
