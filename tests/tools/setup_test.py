"""What setup.sh decides on machines of several kinds, by a dry run among stub programs."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
SYSTEM_PROGRAMS = ["awk", "cat", "dirname", "env", "getconf", "nproc", "sed", "sh", "tr"]


class SetupTest(unittest.TestCase):
    """A machine with everything but torch, run by a user who may not install; tests vary that."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name).resolve() / "tree"
        self.bin = self.tree.parent / "bin"
        self.tree.mkdir()
        self.bin.mkdir()
        shutil.copy(ROOT / "setup.sh", self.tree)
        (self.tree / "tools").mkdir()
        (self.tree / "tools/python_requirements.txt").write_text("pytest==1\n")
        for name in SYSTEM_PROGRAMS:
            if path := shutil.which(name):
                (self.bin / name).symlink_to(path)
        self.program("make")
        self.program("apt-get")
        self.program("ccache")
        self.program("cmake", "echo cmake version 3.25.1")
        self.program("g++", "echo gcc 12")
        self.program("id", "echo 1000")
        self.program("sudo", "exit 1")
        self.python("python3")

    def program(self, name, body="exit 0"):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def python(self, name, torch=None, venv=True):
        """A Python that answers what setup.sh asks: which torch, and can it make a venv."""
        answer = f"echo {torch}" if torch else "exit 1"
        return self.program(
            name, f'case $1 in -) {answer} ;; -c) exit {0 if venv else 1} ;; esac; [ "$1" != -m ]'
        )

    def setup(self, *arguments, code=0, **environment):
        result = subprocess.run(
            ["sh", "./setup.sh", *arguments],
            cwd=self.tree,
            env={"PATH": str(self.bin), "SETUP_DRY_RUN": "1", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        output = result.stdout + result.stderr
        self.assertEqual(result.returncode, code, output)
        return output

    def test_a_venv_is_made_where_no_torch_is(self):
        output = self.setup()
        self.assertIn("+ python3 -m venv --clear .venv\n", output)
        self.assertIn("-m pip install --disable-pip-version-check torch==2.", output)
        python = self.tree / ".venv/bin/python"
        self.assertIn(f"+ cmake --preset release -DPENSTOCK_PYTHON={python} ", output)
        self.assertIn("-m pip install --quiet --disable-pip-version-check -r tools/python_", output)
        self.assertIn("=env;CCACHE_SLOPPINESS=pch_defines,time_macros;ccache", output)
        self.assertNotIn("apt-get", output)

    def test_a_python_with_the_checked_torch_is_used(self):
        python = self.python("python3", torch="2.13.0+cpu")
        self.assertIn(f"-DPENSTOCK_PYTHON={python} ", self.setup())

    def test_the_tools_of_the_python_package_go_into_the_venv_once(self):
        (self.tree / ".venv/bin").mkdir(parents=True)
        self.python("other", torch="2.13.0").rename(self.tree / ".venv/bin/python")
        self.assertIn("-r tools/python_requirements.txt", self.setup())
        (self.tree / ".venv/.penstock-tools").write_text("pytest==1\n")
        self.assertNotIn("-r tools/python_requirements.txt", self.setup())
        (self.tree / "tools/python_requirements.txt").write_text("pytest==2\n")
        self.assertIn("-r tools/python_requirements.txt", self.setup())

    def test_nothing_is_installed_into_a_python_of_others(self):
        self.python("python3", torch="2.13.0")
        self.assertNotIn("pip install", self.setup())
        self.assertNotIn("pip install", self.setup("plan-only"))

    def test_an_unchecked_torch_is_used_only_when_asked_for(self):
        python = self.python("python3", torch="2.10.1")
        self.assertIn(f"PENSTOCK_PYTHON={python} uses it all the same", self.setup())
        output = self.setup(PENSTOCK_PYTHON="python3")
        self.assertIn(f"-DPENSTOCK_PYTHON={python} ", output)
        self.assertNotIn("venv", output)

    def test_a_torch_for_cuda_needs_the_toolkit(self):
        self.python("python3", torch="2.13.0+cu130 cuda 13.0")
        nowhere = {"CUDA_HOME": str(self.tree)}
        output = self.setup(code=2, **nowhere)
        self.assertIn("torch 2.13.0+cu130 cuda 13.0 is built for CUDA", output)
        self.assertIn("install torch's build for CPUs into .venv", output)
        self.setup("plan-only", **nowhere)
        self.program("nvcc")
        self.assertIn("+ cmake --preset release", self.setup(**nowhere))

    def test_what_torch_is_built_for_is_read_from_its_files(self):
        """By a real Python, of a folder that looks like torch."""
        torch = self.tree / "torch"
        (torch / "share/cmake/Torch").mkdir(parents=True)
        (torch / "share/cmake/Torch/TorchConfig.cmake").touch()
        (torch / "__init__.py").touch()
        version = "__version__ = '2.13.0{}'\ndebug = False\ncuda: Optional[str] = {}\n"
        variables = {"PENSTOCK_PYTHON": sys.executable, "PYTHONPATH": str(self.tree)}
        variables["CUDA_HOME"] = str(self.tree)
        (torch / "version.py").write_text(version.format("", "'13.0'"))
        self.assertIn("torch 2.13.0 cuda 13.0 is built for CUDA", self.setup(code=2, **variables))
        (torch / "version.py").write_text(version.format("+cpu", None))
        self.assertIn("+ cmake --preset release", self.setup(**variables))

    def test_penstock_python_must_have_torch(self):
        self.assertIn("has no torch", self.setup(code=2, PENSTOCK_PYTHON="python3"))
        self.assertIn("no such program", self.setup(code=2, PENSTOCK_PYTHON="python4"))

    def test_torch_dir_needs_no_python_torch(self):
        folder = self.tree / "libtorch"
        folder.mkdir()
        self.assertIn("no TorchConfig.cmake", self.setup(code=2, Torch_DIR=str(folder)))
        (folder / "TorchConfig.cmake").touch()
        output = self.setup(Torch_DIR=str(folder))
        self.assertIn(f"-DTorch_DIR={folder} ", output)
        self.assertNotIn("venv", output)

    def test_an_earlier_choice_is_kept_while_it_holds(self):
        python = self.python("other", torch="2.13.0")
        (self.tree / "build").mkdir()
        (self.tree / "build/.penstock-torch").write_text(f"python={python}\n")
        self.assertIn(f"+ cmake --preset asan -DPENSTOCK_PYTHON={python} ", self.setup("asan"))
        self.python("other")
        self.assertIn("-m venv", self.setup("asan"))

    def test_what_is_missing_is_named_in_one_line_to_run(self):
        self.program("g++", "echo missing libcli11-dev; echo missing libgtest-dev; echo gcc 12")
        self.python("python3", venv=False)
        packages = "libcli11-dev libgtest-dev python3-venv"
        line = f"run: sudo apt-get update && sudo apt-get install -y {packages}\n"
        self.assertIn(line, self.setup(code=2))
        (self.bin / "apt-get").unlink()
        self.assertIn(f"under Debian's names: {packages};", self.setup(code=2))

    def test_root_installs_what_is_missing(self):
        self.program("id", "echo 0")
        (self.bin / "ccache").unlink()
        (self.bin / "g++").unlink()
        output = self.setup("plan-only")
        self.assertIn("+ apt-get -qq update\n", output)
        packages = "g++ nlohmann-json3-dev libcli11-dev libgtest-dev ccache"
        self.assertIn(f"apt-get install -qq -y --no-install-recommends {packages}\n", output)

    def test_fuzzing_needs_clang_with_libfuzzer_and_no_torch(self):
        packages = "clang-19 libclang-rt-19-dev"
        self.assertIn(f"apt-get install -y {packages}\n", self.setup("fuzz", code=2))
        resources = self.tree.parent / "clang"
        self.program("clang++-19", f"echo {resources}")
        self.assertIn(f"apt-get install -y {packages}\n", self.setup("fuzz", code=2))
        (resources / "lib/linux").mkdir(parents=True)
        (resources / "lib/linux/libclang_rt.fuzzer-x86_64.a").touch()
        output = self.setup("fuzz")
        self.assertIn("+ cmake --preset fuzz ", output)
        self.assertNotIn("venv", output)

    def test_the_planning_layers_are_sanitized_without_torch(self):
        output = self.setup("asan-plan")
        self.assertIn("+ cmake --preset asan-plan ", output)
        self.assertNotIn("venv", output)

    def test_ccache_is_no_condition(self):
        (self.bin / "ccache").unlink()
        self.assertIn("-DCMAKE_CXX_COMPILER_LAUNCHER=\n", self.setup("plan-only"))

    def test_old_tools_are_refused_by_version(self):
        self.program("g++", "echo gcc 11")
        self.assertIn("g++ 11 is too old: 12 or newer", self.setup("plan-only", code=2))
        self.program("cmake", "echo cmake version 3.9.6")
        self.assertIn("cmake 3.9.6 is too old: 3.25 or newer", self.setup("plan-only", code=2))

    def test_the_second_run_does_nothing_until_a_choice_changes(self):
        """Not a dry run: the stub cmake leaves the Makefile that a configuration leaves."""
        self.python("python3", torch="2.13.0")
        log = self.tree / "log"
        self.program(
            "cmake",
            "[ $1 = --version ] && echo cmake version 3.25.1 && exit\n"
            f'echo "$@" >>{log}; : >build/Makefile',
        )
        (self.bin / "mkdir").symlink_to(shutil.which("mkdir"))
        for _ in range(2):
            self.assertEqual(self.setup(SETUP_DRY_RUN=""), "")
        self.assertEqual(len(log.read_text().splitlines()), 1)
        other = self.python("other", torch="2.13.0")
        self.setup(SETUP_DRY_RUN="", PENSTOCK_PYTHON=str(other))
        self.setup(SETUP_DRY_RUN="")
        first, second = log.read_text().splitlines()
        self.assertNotIn("--fresh", first)
        self.assertIn(f"--preset release --fresh -DPENSTOCK_PYTHON={other} ", second)

    def test_make_py_installs_into_no_python_of_others(self):
        shutil.copy(ROOT / "Makefile", self.tree)
        (self.tree / "setup.sh").write_text("#!/bin/sh\n")
        (self.tree / "build").mkdir()
        log = self.tree / "log"

        def make(python, **variables):
            self.program("own", f'echo "$@" >>{log}')
            log.write_text("")
            (self.tree / "build/.penstock-torch").write_text(f"python={python}\n")
            done = subprocess.run(
                [shutil.which("make"), "py", "JOBS=1"],
                cwd=self.tree,
                env={"PATH": str(self.bin), **variables},
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual("-m pip install" in log.read_text(), done.returncode == 0, done.stderr)
            return done

        other = self.bin / "own"
        refused = make(other)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"PENSTOCK_PYTHON={other} make py", refused.stderr)
        self.assertEqual(make(other, PENSTOCK_PYTHON=str(other)).returncode, 0)
        own = self.tree / ".venv/bin/python"
        own.parent.mkdir(parents=True)
        self.program("own", f'echo "$@" >>{log}')
        own.symlink_to(other)
        self.assertEqual(make(own).returncode, 0)

    def test_jobs_are_at_least_one_and_at_most_the_cores(self):
        jobs = int(self.setup("--jobs"))
        self.assertGreaterEqual(jobs, 1)
        self.assertLessEqual(jobs, os.cpu_count())

    def test_an_unknown_preset_is_named(self):
        self.assertIn("unknown preset fast", self.setup("fast", code=2))


if __name__ == "__main__":
    unittest.main()
