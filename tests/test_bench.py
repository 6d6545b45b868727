"""The speed benchmark: what it reports is what was run."""

from __future__ import annotations

import json

import pytest

from mars_core import MarsError
from mars_core.bench.command import read_prompts
from mars_core.bench.speed import BASELINE, as_json, markdown, measure, methods
from tests.tiny import tiny_loaded


@pytest.fixture(scope="module")
def rows():
    loaded = tiny_loaded()
    table = methods(loaded, [0.1], [1.0], max_new_tokens=12)
    return measure(table, [[65, 66, 67], [70, 71]])


def test_every_method_is_measured_against_generate(rows):
    by_name = {row.method: row for row in rows}
    assert by_name[BASELINE].speedup == 1 and by_name[BASELINE].same_text == 1
    assert {"ours, AR", "ours, MARS τ = 0.1", "ours, MARS + verify τ = 1 (full)"} <= by_name.keys()
    assert by_name["ours, AR"].tokens_per_forward == 1
    assert by_name["ours, MARS τ = 0.1"].tokens_per_forward > 1


def test_the_report_has_a_line_a_method_and_reads_back(rows):
    assert len(markdown(rows).splitlines()) == 2 + len(rows)
    assert len(json.loads(json.dumps(as_json(rows, {"model": "tiny"})))["rows"]) == len(rows)


@pytest.mark.parametrize("line", ["{", '{"turns": []}', "[1]", '{"text": "x"}'])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line, "utf-8")
    with pytest.raises(MarsError, match="line 2"):
        read_prompts(path)
