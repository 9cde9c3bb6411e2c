"""What setup.sh decides on machines of several kinds, by a dry run among stub programs."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
SYSTEM_PROGRAMS = ["awk", "cat", "dirname", "env", "getconf", "ln", "ls", "mkdir", "nproc", "rm"]
SYSTEM_PROGRAMS += ["sed", "sh", "tr"]


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
        self.disk(free_mb=20000)
        self.program("g++", "echo gcc 12")
        self.program("id", "echo 1000")
        self.program("sudo", "exit 1")
        self.python("python3")

    def program(self, name, body="exit 0"):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def disk(self, free_mb):
        self.program("df", f"echo header; echo disk 1 1 {free_mb * 1024} 1% /")

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
        python = self.python("python3", torch="2.12.1")
        self.assertIn(f"PENSTOCK_PYTHON={python} uses it all the same", self.setup())
        output = self.setup(PENSTOCK_PYTHON="python3")
        self.assertIn(f"-DPENSTOCK_PYTHON={python} ", output)
        self.assertNotIn("venv", output)

    def test_a_torch_for_cuda_needs_no_toolkit(self):
        self.python("python3", torch="2.13.0+cu130 cuda 13.0")
        self.assertIn("+ cmake --preset release", self.setup(PENSTOCK_PYTHON="python3"))

    def test_a_torch_that_cannot_be_built_against_is_refused(self):
        self.python("python3", torch="2.10.1+cpu")
        output = self.setup(code=2, PENSTOCK_PYTHON="python3")
        self.assertIn(f"torch 2.10.1+cpu of {self.bin}/python3 is too old: 2.11 or newer", output)
        self.python("python3", torch="2.13.0+cpu abi 0")
        output = self.setup(code=2, TORCH="python3")
        self.assertIn("has another C++ ABI", output)
        for line in output.splitlines():
            self.assertTrue(line.startswith("setup: "), output)
        self.assertEqual(len(output.splitlines()), 1, output)

    def test_what_torch_is_built_for_is_read_from_its_files(self):
        """By a real Python, of a folder that looks like torch."""
        torch = self.tree / "torch"
        (torch / "share/cmake/Torch").mkdir(parents=True)
        config = torch / "share/cmake/Torch/TorchConfig.cmake"
        config.touch()
        (torch / "__init__.py").touch()
        version = "__version__ = '2.13.0{}'\ndebug = False\ncuda: Optional[str] = {}\n"
        variables = {"PENSTOCK_PYTHON": sys.executable, "PYTHONPATH": str(self.tree)}
        variables["SETUP_DRY_RUN"] = ""
        self.program("cmake", "[ $1 != --version ] || echo cmake version 3.25.1")
        (torch / "version.py").write_text(version.format("", "'13.0'"))
        self.setup(**variables)
        stamp = self.tree / "build/.penstock-setup"
        self.assertIn("version=2.13.0 cuda 13.0 launcher", stamp.read_text())
        (torch / "version.py").write_text(version.format("+cpu", None))
        self.setup(**variables)
        self.assertIn("version=2.13.0+cpu launcher", stamp.read_text())
        config.write_text('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")')
        self.assertIn("has another C++ ABI", self.setup(code=2, **variables))

    def test_a_download_that_is_of_no_use_here_is_announced(self):
        if Path("/dev/nvidiactl").exists():
            self.skipTest("this machine has an NVIDIA device")
        output = self.setup()
        self.assertIn("no NVIDIA device here, and pip's torch is built for CUDA: 3 GB", output)
        self.assertLess(output.index("TORCH=cpu"), output.index("installing torch"), output)
        self.program("nvidia-smi")
        self.assertNotIn("no NVIDIA device", self.setup())

    def test_the_build_for_cpus_is_installed_when_asked_for(self):
        output = self.setup(TORCH="cpu")
        self.assertRegex(
            output, r"pip install --disable-pip-version-check torch==2\.\d+\.\d+\+cpu\n"
        )
        self.assertNotIn("NVIDIA", output)
        (self.tree / ".venv/bin").mkdir(parents=True)
        python = self.tree / ".venv/bin/python"
        self.python("other", torch="2.14.1 cuda 13.0").rename(python)
        self.assertIn("+cpu\n", self.setup(TORCH="cpu"))
        self.python("other", torch="2.14.1+cpu").rename(python)
        self.assertNotIn("torch==", self.setup(TORCH="cpu"))

    def test_a_version_of_torch_is_installed_when_asked_for(self):
        self.assertIn("torch==2.14.1\n", self.setup(TORCH="2.14.1"))
        (self.tree / ".venv/bin").mkdir(parents=True)
        python = self.tree / ".venv/bin/python"
        self.python("other", torch="2.13.0").rename(python)
        self.assertIn("torch==2.14.1\n", self.setup(TORCH="2.14.1"))
        for version in ("2.14.1", "2.14.1+cu130 cuda 13.0"):
            self.python("other", torch=version).rename(python)
            self.assertNotIn("torch==", self.setup(TORCH="2.14.1"))

    def test_a_python_is_named_by_its_path(self):
        python = self.python("other", torch="2.12.0")
        self.assertIn(f"-DPENSTOCK_PYTHON={python} ", self.setup(TORCH=str(python)))
        self.assertIn("TORCH=nowhere: no such program", self.setup(code=2, TORCH="nowhere"))

    def test_the_space_is_checked_before_the_download(self):
        self.disk(free_mb=2000)
        output = self.setup(code=2)
        self.assertIn("takes 9000 MB while it is installed, and the disk of . has 2000 MB", output)
        self.assertIn("the build for CPUs takes 1500: TORCH=cpu", output)
        self.assertNotIn("pip install", output)
        self.assertIn("+cpu\n", self.setup(TORCH="cpu"))
        self.disk(free_mb=1000)
        self.assertIn("takes 1500 MB", self.setup(code=2, TORCH="cpu"))

    def venv_maker(self, pip):
        """A python3 whose venvs have a python that runs the shell text `pip` as `-m pip`."""
        made = self.tree / ".venv/bin"
        inner = self.program("inner", f"case $1 in -) cat torch; exit ;; esac\n{pip}")
        self.program(
            "python3",
            f"case $1 in -) exit 1 ;; -c) exit 0 ;; esac\n"
            f"echo venv >>log; mkdir -p {made}; rm -f {made}/python .venv/.penstock-unfinished\n"
            f"ln -s {inner} {made}/python",
        )

    def test_a_half_made_venv_is_made_anew(self):
        self.venv_maker('case "$*" in *dry-run*) exit 1 ;; *torch==*) exit 1 ;; esac')
        output = self.setup(code=2, SETUP_DRY_RUN="")
        self.assertIn("torch could not be installed; run this again", output)
        (self.tree / "torch").write_text("2.13.0\n")  # As far as the interrupted pip came.
        self.venv_maker("exit 0")
        self.setup(SETUP_DRY_RUN="")
        self.assertEqual((self.tree / "log").read_text(), "venv\nvenv\n")
        self.setup(SETUP_DRY_RUN="")
        self.assertEqual((self.tree / "log").read_text(), "venv\nvenv\n")

    def test_what_pip_cannot_find_is_said_in_a_line(self):
        words = {
            "none": "pip finds no torch at all: is there a network?",
            "2.12.0, 2.13.0": "for this Python; TORCH=VERSION names another",
        }
        for versions, expected in words.items():
            self.venv_maker(
                f"case $* in *dry-run*) echo '(from versions: {versions})'; exit 1 ;; esac"
            )
            output = self.setup(code=2, SETUP_DRY_RUN="", TORCH="2.99.0")
            self.assertIn(expected, output)
        output = self.setup(code=2, SETUP_DRY_RUN="", TORCH="cpu")
        self.assertIn("set PIP_EXTRA_INDEX_URL to PyTorch's index for CPUs", output)

    def test_a_python_without_headers_is_named(self):
        self.python("python3", venv=False)
        output = self.setup("--python-headers", "python3", code=2)
        self.assertIn("python3 has no Python.h", output)
        self.python("python3")
        self.assertEqual(self.setup("--python-headers", "python3"), "")

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
        packages = "g++ nlohmann-json3-dev libcli11-dev libgtest-dev libxxhash-dev ccache"
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
