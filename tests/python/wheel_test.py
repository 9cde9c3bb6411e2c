"""What pip gives: both wheels, installed into fresh venvs, and the sources as an archive.

A venv has torch by a link, beside which the package lies; or by a .pth file, which Python alone
reads; or it has none.  Nothing is asked of a network.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("PENSTOCK_BUILD", ROOT / "build"))
TORCH = Path(importlib.util.find_spec("torch").origin).parent
TOOLS = ROOT / "tools/python"
DEMO = ROOT / "examples/gpt.json"
SHORT = ["--set", "run.steps=3", "--set", "run.eval_batches=1", "--set", "run.sample_bytes=4"]
# Nothing of this Python's or this build's leads a venv to what it has not installed.
FOREIGN = ("PENSTOCK_", "PYTHON", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


def run(*words, path=None, cwd=None, **options):
    """A finished program, found on a PATH that begins with `path`."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    given["PATH"] = f"{path}:{given['PATH']}" if path else given["PATH"]
    options = {"capture_output": True, "text": True, "timeout": 100, **options}
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=cwd, env=given, check=False, **options)


class Venv:
    """A fresh venv with a wheel in it."""

    def __init__(self, folder, wheel):
        self.folder = folder
        self.bin = folder / "venv/bin"
        self.done(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        (self.packages,) = folder.glob("venv/lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python", "install"]
        self.done(*pip, "--disable-pip-version-check", "--no-index", "--no-deps", wheel)

    def run(self, *words, **options):
        return run(*words, path=self.bin, cwd=self.folder, **options)

    def done(self, *words):
        """What a program prints that ends well."""
        result = self.run(*words)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def refused(self, *words):
        """The one line with which a program ends that does not."""
        result = self.run(*words)
        assert result.returncode == 2, result.stdout + result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr

    def losses(self, folder):
        lines = (self.folder / folder / "metrics.jsonl").read_text().splitlines()
        return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of the build, by distribution."""
    made = run(sys.executable, TOOLS / "wheel.py", BUILD, tmp_path_factory.mktemp("wheels"))
    assert made.returncode == 0, made.stderr
    paths = [Path(line) for line in made.stdout.splitlines()]
    return {path.name.partition("-")[0]: path for path in paths}


@pytest.fixture(scope="module")
def full(wheels, tmp_path_factory):
    """The wheel of everything, beside torch."""
    venv = Venv(tmp_path_factory.mktemp("full"), wheels["penstock"])
    (venv.packages / "torch").symlink_to(TORCH)
    (venv.packages / "what_torch_needs.pth").write_text(f"{TORCH.parent}\n")
    return venv


@pytest.fixture(scope="module")
def plan(wheels, tmp_path_factory):
    return Venv(tmp_path_factory.mktemp("plan"), wheels["penstock_plan"])


def test_the_demo_trains_with_four_ranks(full):
    printed = full.done("penstock", "train", DEMO, *SHORT, "--nproc", "4", "--run", "first")
    assert "sample" in printed
    losses = full.losses("first")
    assert len(losses) == 3 and losses[2] < losses[0]
    # Of torchrun's, each rank comes by the console script.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    command = ["penstock", "train", DEMO, *SHORT, "--run", "second"]
    full.done(*torchrun, "--no-python", "--", *command)
    assert full.losses("second") == losses


def test_signals_and_exit_codes_are_the_programs(full):
    wrong = full.run("penstock", "trian")
    assert wrong.returncode == 2 and "unknown command" in wrong.stderr
    assert full.run("penstock", "train", "no_such_file").returncode == 2
    command = [full.bin / "penstock", "train", DEMO, "--run", "interrupted"]
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=full.folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # A shell that runs this in the background may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as training:
        while not (line := training.stderr.readline()).startswith("step 1/"):
            assert line, "it ended before the first step"
        training.send_signal(signal.SIGINT)
        training.stderr.read()
        assert training.wait(60) == 130


def test_the_package_runs(full):
    full.done("python", "-c", "from penstock import _torch, pipelining, zero; _torch.load()")
    version = full.done("penstock", "--version")
    assert "torch 2" in version
    assert full.done("python", "-m", "penstock", "--version") == version


def test_where_torch_is_found(full, wheels, tmp_path):
    memory = ["memory", DEMO]
    beside = full.done("penstock", *memory)
    assert full.done(full.packages / "penstock/bin/penstock", *memory) == beside
    elsewhere = Venv(tmp_path, wheels["penstock"])
    missing = elsewhere.refused("penstock", *memory)
    assert "needs torch" in missing and "pip install torch==" in missing
    assert "train" in elsewhere.done("penstock", "train", "--help")
    other = elsewhere.packages / "torch"
    other.mkdir()
    (other / "version.py").write_text("__version__ = '1.13.0+cpu'\n")
    assert "this is torch 1.13.0+cpu" in elsewhere.refused("penstock", *memory)
    (other / "version.py").unlink()
    other.rmdir()
    (elsewhere.packages / "torch_elsewhere.pth").write_text(f"{TORCH.parent}\n")
    assert elsewhere.done("penstock", *memory) == beside


def test_zbv_is_drawn_without_torch(plan):
    assert plan.run("python", "-c", "import torch").returncode == 1
    command = ["schedule", "zbv", "--ranks", "4", "--microbatches", "8"]
    plan.done("penstock", *command, "--format", "svg", "--output", "by_program.svg")
    plan.done("penstock", *command, "--format", "csv", "--output", "zbv.csv")
    plan.done(
        "python",
        "-c",
        "from penstock.schedule import generate, render, simulate, verify\n"
        "schedule = generate('zbv', ranks=4, microbatches=8)\n"
        "assert verify(schedule) and simulate(schedule).makespan == 51.0\n"
        "render(schedule, 'by_package.svg')\n"
        "open('by_package.csv', 'w').write(schedule.to_csv())\n",
    )
    picture = (plan.folder / "by_program.svg").read_text()
    assert picture.startswith("<svg") and picture.count("<rect") > 4 * 8 * 2 * 3
    assert (plan.folder / "by_package.csv").read_text() == (plan.folder / "zbv.csv").read_text()
    assert (plan.folder / "by_package.svg").read_text().startswith("<svg")


def test_planning_commands_need_no_torch(plan):
    sizes = ["--ranks", "4", "--microbatches", "8"]
    plan.done("penstock", "schedule", "1f1b", *sizes, "--format", "csv", "-o", "a.csv")
    for command in ("verify", "simulate"):
        plan.done("penstock", command, "a.csv")
    plan.done("penstock", "schedule", "compare", *sizes)
    assert "planning only" in plan.done("penstock", "--version")


def test_what_needs_torch_says_what_to_install(plan):
    for statement in (
        "import penstock.zero",
        "import penstock.pipelining",
        "import penstock.accelerator",
        "import penstock.lr_schedules",
        "from penstock.pipe import PipelineModule",
        "import penstock; penstock.initialize(model=1, config={})",
    ):
        result = plan.run("python", "-c", statement)
        assert result.stderr.rpartition("ImportError: ")[2].endswith(
            "uninstall penstock-plan, then install penstock and torch\n"
        ), f"{statement}: {result.stderr}"
    trained = plan.run("penstock", "train", DEMO)
    assert trained.returncode == 1 and "uninstall that, then install penstock" in trained.stderr


def test_files_of_the_wheels(wheels):
    contents = {}
    for name, path in wheels.items():
        with zipfile.ZipFile(path) as archive:
            contents[name] = {file: archive.read(file) for file in archive.namelist()}
    full, plan = contents["penstock"], contents["penstock_plan"]
    native = [content for content in full.values() if content.startswith(b"\x7fELF")]
    assert len(native) == 4
    for content in native:
        for place in (ROOT, BUILD, TORCH.parent):
            assert str(place).encode() + b"/" not in content
    # Whoever installs both has the full one, in either order.
    shared = full.keys() & plan.keys()
    assert all(full[file] == plan[file] for file in shared)
    assert all(".dist-info/" in file for file in plan.keys() - shared)
    assert wheels["penstock_plan"].stat().st_size < 5e6


def test_the_source_archive_is_complete(tmp_path):
    pytest.importorskip("scikit_build_core")
    code = (
        "import os, sys, build_backend\n"
        "os.chdir(sys.argv[1])\n"
        "print(build_backend.build_sdist(sys.argv[2]))\n"
    )
    made = run(sys.executable, "-B", "-c", code, ROOT, tmp_path, cwd=TOOLS)
    assert made.returncode == 0, made.stderr
    with tarfile.open(tmp_path / made.stdout.split()[-1]) as archive:
        archive.extractall(tmp_path)
    (source,) = tmp_path.glob("penstock-*/")
    configured = run(
        *("cmake", "-S", source, "-B", tmp_path / "build", "-DPENSTOCK_BINDINGS=ON"),
        *(f"-DPENSTOCK_PYTHON={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"),
    )
    assert configured.returncode == 0, configured.stdout + configured.stderr
