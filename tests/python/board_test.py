"""`python -m penstock.board`: what it writes of a run that has ended, resumed or goes on."""

import csv
import json
import os
import subprocess
import sys
import time

import pytest

EVENTS = '{"event": "started", "step": 0}\n'
TEXTS = "sample/text_summary"  # As TensorBoard calls the texts "sample".
ENDED = EVENTS + '{"event": "finished", "step": 3}\n'


def line(step, loss, key="loss", **more):
    values = {"step": step, key: loss}
    return json.dumps(values | ({} if key == "val_loss" else {"lr": 0.5}) | more) + "\n"


def sample(step, text):
    return json.dumps({"step": step, "prompt": "The river ", "text": text}) + "\n"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    text = line(1, 4.5, grad_norm="inf", gradient_scale=8.0) + line(2, 3.25)
    (folder / "metrics.jsonl").write_text(text + line(2, 3.5, "val_loss") + line(3, 2.125))
    (folder / "events.jsonl").write_text(ENDED)
    return folder


def words_of(*words):
    return [sys.executable, "-m", "penstock.board", *map(str, words)]


def board(*words, code=0):
    done = subprocess.run(words_of(*words), capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def rows(folder, name="steps.csv"):
    with (folder / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def losses(folder):
    return [(int(row["step"]), float(row["loss/train"])) for row in rows(folder)]


def test_tables_have_every_step_and_validation(run, tmp_path):
    folder = tmp_path / "tables"
    assert board(run, "--csv", folder) == f"4 lines of {run} -> {folder}\n"
    assert losses(folder) == [(1, 4.5), (2, 3.25), (3, 2.125)]
    first, second = rows(folder)[:2]
    assert (first["grad_norm"], first["gradient_scale"], first["lr"]) == ("inf", "8.0", "0.5")
    assert (second["grad_norm"], second["gradient_scale"]) == ("", "")
    assert rows(folder, "validations.csv") == [{"step": "2", "loss/validation": "3.5"}]


def wait_for_rows(folder, count, name="steps.csv"):
    deadline = time.monotonic() + 30
    while not (folder / name).is_file() or len(rows(folder, name)) < count:
        assert time.monotonic() < deadline, f"no {count} rows in {folder / name} after 30 s"
        time.sleep(0.05)


@pytest.fixture
def following(run, tmp_path):
    (run / "events.jsonl").write_text(EVENTS)
    words = words_of(run, "--csv", tmp_path / "tables", "--follow")
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True) as process:
        wait_for_rows(tmp_path / "tables", 3)
        yield process
        process.kill()


def test_a_run_that_is_resumed_does_not_double(run, tmp_path, following):
    # As a resumed run does: the lines up to its checkpoint, in a new file, and then the same again.
    text = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    new = run / "new"
    new.write_text(text[0])
    new.replace(run / "metrics.jsonl")
    time.sleep(1.5)  # Longer than the pause between two looks.
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(text[1:]) + line(4, 1.5) + '{"step": 5, "lo')
        file.flush()
        wait_for_rows(tmp_path / "tables", 4)
        file.write('ss": 1.25}\n')
    (run / "events.jsonl").write_text(ENDED)
    output, errors = following.communicate(timeout=30)
    assert following.returncode == 0, errors
    assert output.startswith("6 lines of ")
    expected = [(1, 4.5), (2, 3.25), (3, 2.125), (4, 1.5), (5, 1.25)]
    assert losses(tmp_path / "tables") == expected


def test_another_run_in_the_directory_is_an_error(run, following):
    (run / "metrics.jsonl").write_text(line(1, 9.0) + line(2, 8.0) + line(3, 7.0))
    _, errors = following.communicate(timeout=30)
    assert following.returncode == 2
    assert "step 3 had the loss 2.125, and has 7.0 now: another run has begun" in errors


def test_what_is_no_run_is_an_error(tmp_path):
    assert f'"{tmp_path}" has no metrics.jsonl' in board(tmp_path, "--csv", "x", code=2)


def test_a_line_that_is_no_metric_is_an_error(run):
    (run / "metrics.jsonl").write_text('{"loss": 1}\n')
    assert 'metrics.jsonl" has a line that is no metric' in board(run, "--csv", run, code=2)


def test_samples_are_rows_each_once(run, tmp_path, following):
    samples, tables = run / "samples.jsonl", tmp_path / "tables"
    samples.write_text(sample(1, "runs.") + json.dumps({"step": 2, "tokens": [7]}) + "\n")
    wait_for_rows(tables, 1, "samples.csv")
    # Of a run that went on from a checkpoint.
    new = run / "new"
    new.write_text(sample(1, "runs.") + sample(3, "flows.") + sample(4, "is")[:-9])
    new.replace(samples)
    wait_for_rows(tables, 2, "samples.csv")
    (run / "events.jsonl").write_text(ENDED)
    _, errors = following.communicate(timeout=30)
    assert following.returncode == 0, errors
    read = [(row["step"], row["text"]) for row in rows(tables, "samples.csv")]
    assert read == [("1", "The river runs."), ("3", "The river flows.")]


def test_event_files_hold_what_the_metrics_hold(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run / "samples.jsonl").write_text(sample(2, "runs.") + sample(3, "flows."))
    board(run)
    board(run)  # Once more: nothing doubles.
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("loss/train")]
    assert read == [(1, 4.5), (2, 3.25), (3, 2.125)]
    assert [(event.step, event.value) for event in events.Scalars("loss/validation")] == [(2, 3.5)]
    texts = {each.step: each.tensor_proto.string_val[0] for each in events.Tensors(TEXTS)}
    assert texts == {2: b"The river runs.", 3: b"The river flows."}


def test_an_offline_run_of_weights_and_biases_is_made(run):
    pytest.importorskip("wandb")
    board(run, "--wandb", "river")
    assert list((run / "wandb").glob("offline-run-*/*.wandb"))


def test_a_library_that_is_missing_is_named(run, tmp_path):
    (tmp_path / "wandb.py").write_text("raise ImportError('not there')")
    words = words_of(run, "--wandb", "river")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2
    assert "needs the package wandb: pip install wandb" in done.stderr
