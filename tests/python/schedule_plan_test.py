"""penstock.schedule.plan: what the program answers, as values; and the notebook runs."""

import json
import subprocess
from pathlib import Path

import pytest

from penstock import _program
from penstock.errors import ConfigError, Error
from penstock.schedule import plan

ROOT = Path(__file__).parents[2]
CONFIG = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "model": {"layers": 4, "hidden": 64, "sequence_length": 32},
    "mesh": {"pipe": 2, "data": 2},
}
DEVICE = {"flops": 1e10, "bandwidth": 1e10, "link": "intra=1GB/s:10us"}


def run(*words):
    words = [str(word) for word in words]
    done = subprocess.run(
        [str(_program.PROGRAM), *words],
        env=_program.environment(words), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    config, layers = folder / "gpt.json", folder / "layers.json"
    config.write_text(json.dumps(CONFIG))
    run("memory", config, "--layers", layers, "--microbatch-sizes", "1,2")
    return config, layers


@pytest.fixture(scope="module")
def planned(files):
    return plan(CONFIG, world=4, memory="1GB", layers=files[1], top=5, **DEVICE)


def test_candidates_are_those_of_the_program(files, planned):
    config, layers = files
    words = ("--world", 4, "--memory", "1GB", "--layers", layers, "--top", 5)
    device = ("--flops", 1e10, "--bandwidth", 1e10, "--link", DEVICE["link"])
    told = json.loads(run("plan", config, *words, *device, "--format", "json"))
    assert len(planned) == 5
    for each, expected in zip(planned, told["candidates"], strict=True):
        values = {name: getattr(each, name) for name in expected}
        assert values == expected
        assert sum(each.parts.values()) == pytest.approx(each.step)
        assert len(each.peak) == len(each.peak_at) == each.pipe
    assert [each.number for each in planned] == [1, 2, 3, 4, 5]
    assert (planned.layouts, planned.simulated) == (told["layouts"], told["simulated"])
    assert plan(config, world=4, memory=10**9, layers=layers, top=5, **DEVICE)[0] == planned[0]


def test_the_frontier_is_what_nothing_beats(planned):
    frontier = planned.frontier()
    for each in planned:
        beaten = any(o.step <= each.step and max(o.peak) <= max(each.peak)
                     for o in frontier if o is not each)  # fmt: skip
        assert each.on_frontier != beaten
    assert planned.to_svg().startswith("<svg")
    assert planned._repr_svg_() == planned.to_svg()
    page = planned.to_html()
    assert page.startswith("<!DOCTYPE html>") and f"candidate {frontier[0].number}" in page


def test_a_candidate_is_explained_and_written(planned, tmp_path):
    text = planned.explain(2)
    assert text.startswith("candidate 2: pipe ") and "more than candidate 1" in text
    values = planned.configuration(2)
    assert values["mesh"]["pipe"] == planned[1].pipe
    assert values["schedule"]["name"] == planned[1].schedule
    path = tmp_path / "planned.json"
    path.write_text(json.dumps(values))
    told = json.loads(run("memory", path, "--json"))
    assert [rank["peak"]["total"] for rank in told["pipe_ranks"]] == planned[1].peak


def test_layers_are_measured_where_no_file_has_them(planned):
    measured = plan(CONFIG, world=4, memory="1GB", microbatch_sizes=[1, 2], top=5, **DEVICE)
    assert measured.candidates == planned.candidates


def test_what_does_not_fit_is_an_error(files, planned):
    ask = {"world": 4, "layers": files[1]}
    with pytest.raises(Error, match="none of the layouts of 4 ranks fits") as caught:
        plan(CONFIG, memory=1000, **ask, **DEVICE)
    assert not isinstance(caught.value, ConfigError)
    assert caught.value.notes[0].startswith("allow ")
    with pytest.raises(ConfigError, match="how long do layers take"):
        plan(CONFIG, memory="1GB", **ask)
    with pytest.raises(ConfigError, match=r"^config:1:[0-9]+: unknown key .modle"):
        plan({**CONFIG, "modle": {}}, memory="1GB", **ask, **DEVICE)
    with pytest.raises(ConfigError, match="number is 6, must be from 1 to 5"):
        planned.explain(6)
    with pytest.raises(TypeError, match="world is 'four'"):
        plan(CONFIG, world="four", memory="1GB", layers=files[1], **DEVICE)


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples/python/frontier.ipynb").read_text(encoding="utf-8"))
    names = {}
    cells = [each for each in notebook["cells"] if each["cell_type"] == "code"]
    assert cells
    for number, cell in enumerate(cells, 1):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert names["planned"].frontier()
