"""System calls that are refused, as an older kernel or the filter of a container does it.

refusal() is what a new process calls ahead of its program: it and all that it starts are under the
filter then.  refused_calls_test.py refuses all at once, seccomp_soak.py each alone, to the commands
of Errands.  Needs Linux and the standard library.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable

import comebacks
import support
from run_on_hosts_test import SSH
from support import PENSTOCK, losses

# The kernel's numbers.
_NUMBERS = {
    "x86_64": {
        "accept4": 288, "clone3": 435, "close_range": 436, "copy_file_range": 326, "dup3": 292,
        "epoll_create1": 291, "eventfd2": 290, "fadvise64": 221, "fallocate": 285, "fcntl": 72,
        "flock": 73, "getrandom": 318, "io_uring_setup": 425, "madvise": 28, "membarrier": 324,
        "memfd_create": 319, "openat": 257, "pidfd_open": 434, "pidfd_send_signal": 424,
        "pipe2": 293, "prctl": 157, "process_vm_readv": 310, "readlink": 89, "readlinkat": 267,
        "renameat2": 316, "sched_getaffinity": 204, "sched_setaffinity": 203, "sendfile": 40,
        "statx": 332, "sync_file_range": 277, "syncfs": 306, "userfaultfd": 323,
    },
    "aarch64": {
        "accept4": 242, "clone3": 435, "close_range": 436, "copy_file_range": 285, "dup3": 24,
        "epoll_create1": 20, "eventfd2": 19, "fadvise64": 223, "fallocate": 47, "fcntl": 25,
        "flock": 32, "getrandom": 278, "io_uring_setup": 425, "madvise": 233, "membarrier": 283,
        "memfd_create": 279, "openat": 56, "pidfd_open": 434, "pidfd_send_signal": 424,
        "pipe2": 59, "prctl": 167, "process_vm_readv": 270, "readlinkat": 78,
        "renameat2": 276, "sched_getaffinity": 123, "sched_setaffinity": 122, "sendfile": 71,
        "statx": 291, "sync_file_range": 84, "syncfs": 267, "userfaultfd": 282,
    },
}  # fmt: skip
NUMBERS = _NUMBERS.get(platform.machine(), {})

# Those that are refused for some arguments only: (which argument, these bits of it, their value).
_F_SETFL = 4
_UNNAMED = os.O_TMPFILE & ~os.O_DIRECTORY
CONDITIONS = {
    "O_TMPFILE": ("openat", [(2, _UNNAMED, _UNNAMED)]),
    "O_DIRECT": ("fcntl", [(1, 0xFFFFFFFF, _F_SETFL), (2, os.O_DIRECT, os.O_DIRECT)]),
}

ALL = sorted([*NUMBERS.keys() - {"openat", "fcntl"}, *CONDITIONS])

# Without these a run ends with a line that says why: torch's store has no other way than pipe2,
# and the C library none than clone3 where a filter does not say that it is absent.
WITHOUT_ANOTHER_WAY = {("clone3", "EPERM"), ("pipe2", "ENOSYS"), ("pipe2", "EPERM")}

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000
_ARGUMENTS = 16  # Where they begin in what a filter sees.
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def _rule(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_so, if_not, value)


def _rules(name: str, error: int) -> bytes:
    """Refuses one call; what it is not goes on behind them."""
    number, conditions = CONDITIONS.get(name, (name, []))
    rules = [_rule(_RETURN, _ANSWER | error)]
    for argument, bits, value in reversed(conditions):
        rules.insert(0, _rule(_EQUAL, value, 0, len(rules)))
        rules.insert(0, _rule(_AND, bits))
        rules.insert(0, _rule(_LOAD, _ARGUMENTS + 8 * argument))
    rules.insert(0, _rule(_EQUAL, NUMBERS[number], 0, len(rules)))
    return b"".join([_rule(_LOAD, 0), *rules])


def refusal(names: Iterable[str], error: int) -> Callable[[], None]:
    """What refuses those calls with that errno, to this process and all that it starts."""
    program = b"".join(_rules(name, error) for name in names) + _rule(_RETURN, _ALLOW)
    text = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(text))
    )
    library = ctypes.CDLL(None, use_errno=True)

    def refuse() -> None:
        library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if library.prctl(_PR_SET_SECCOMP, _FILTER, header, 0, 0) != 0:
            os._exit(99)
        assert text  # Which the header points to.

    return refuse


def can_refuse() -> bool:
    """Whether this machine takes filters."""
    if not NUMBERS:
        return False
    done = subprocess.run(
        [sys.executable, "-c", ""], preexec_fn=refusal(["statx"], 38), check=False
    )
    return done.returncode == 0


@functools.cache
def tokenizing_python() -> str:
    """A Python that tokenizes; the empty text where there is none."""
    python = support.TORCH_PYTHON
    if not python or not shutil.which(python):
        return ""
    asked = subprocess.run([python, "-c", "import tokenizers"], capture_output=True, check=False)
    return python if asked.returncode == 0 else ""


_TOKENIZER = """
import sys, tokenizers
from tokenizers import models, pre_tokenizers
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.save(sys.argv[1])
"""


class Errands(comebacks.ComebackTest):
    """Commands under a filter, beside the same without one, which prepare() has run before.

    Each returns its result, and fails where that is wrong, and no refusal in one line.
    """

    kept: tempfile.TemporaryDirectory | None = None  # What the first of these tests has made.

    def prepare(self) -> None:
        self.tiny = self.folder / "errand.json"
        self.python = tokenizing_python()
        if Errands.kept is None:
            kept = tempfile.TemporaryDirectory(prefix="penstock-test-")
            self.make()
            shutil.copytree(self.folder, kept.name, dirs_exist_ok=True)
            Errands.kept = kept
        else:
            shutil.copytree(Errands.kept.name, self.folder, dirs_exist_ok=True)
        (self.folder / ".deepspeed_env").write_text(f"{support.MARK}={self.mark}\n")

    def make(self) -> None:
        self.training(
            self.tiny.name,
            data={"path": self.text.name},  # Wherever the folder is copied.
            mesh={"pipe": 2, "data": 1},
            run={"steps": 6},
            checkpoint={"save_interval": 3, "asynchronous": False},
            launch={"restarts": 0},
        )
        self.assert_code(self.train(self.tiny, "--run", "whole"), 0)
        killed = self.train(self.tiny, "--run", "killed", "--inject", "kill:rank=0,step=5")
        self.assert_code(killed, 4)
        self.make_tokenizer()
        ssh = self.folder / "ssh"
        ssh.write_text(SSH)
        ssh.chmod(0o755)
        (self.folder / "hosts").write_text("one slots=1\ntwo slots=1\n")

    def make_tokenizer(self) -> None:
        if self.python:
            (self.folder / "tokenizer").mkdir()
            file = self.folder / "tokenizer" / "tokenizer.json"
            subprocess.run([self.python, "-c", _TOKENIZER, file], check=True)
            self.assert_code(self.tokenize("whole"), 0)

    def under(self, before: Callable[[], None], *words: object, **variables: str) -> support.Result:
        environment = self.environment(**variables)
        return self.start(*words, environment=environment, before=before).wait(60)

    def tokenize(self, name: str, before: Callable[[], None] = lambda: None) -> support.Result:
        return self.under(
            before,
            *(self.python, "-m", "penstock.tokenize", self.text, "--tokenizer", "tokenizer"),
            *("-o", f"{name}.bin", "--end-of-text", ""),
            PYTHONPATH=str(support.BUILD / "python"),
        )

    def assert_trained(self, name: str) -> None:
        self.assertEqual(losses(self.folder / name), losses(self.folder / "whole"))

    # The errands.

    def train_errand(self, name: str, before: Callable[[], None]) -> support.Result:
        words = (PENSTOCK, "train", self.tiny, "--run", name, "--save", f"{name}-weights")
        result = self.under(before, *words)
        if result.code == 0:
            self.assert_trained(name)
        return result

    def resume_errand(self, name: str, before: Callable[[], None]) -> support.Result:
        shutil.copytree(self.folder / "killed", self.folder / name)
        words = (PENSTOCK, "train", self.tiny, "--run", name, "--resume", "auto")
        result = self.under(before, *words)
        if result.code == 0:
            self.assert_same(self.folder / "whole", self.folder / name)
        return result

    def kill_errand(self, name: str, before: Callable[[], None]) -> support.Result:
        words = (PENSTOCK, "train", self.tiny, "--run", name, "--inject", "kill:rank=1,step=2")
        result = self.under(before, *words)
        self.assertNotEqual(result.code, 0, result.text)
        if "rank 1 was killed by SIGKILL" in result.err:
            self.assert_code(result, 4)
            return support.Result(0, result.out, result.err, result.seconds)
        return result

    def tokenize_errand(self, name: str, before: Callable[[], None]) -> support.Result:
        if not self.python:
            return support.Result(0, "", "", 0)
        result = self.tokenize(name, before)
        if result.code == 0:
            for end in (".bin", ".bin.json"):
                made, whole = (self.folder / f"{each}{end}" for each in (name, "whole"))
                self.assertEqual(made.read_bytes(), whole.read_bytes())
        return result

    def run_errand(self, name: str, before: Callable[[], None]) -> support.Result:
        words = ("--ssh-command", self.folder / "ssh", "--master_addr", "127.0.0.1", "-H", "hosts")
        result = self.under(
            before,
            *(PENSTOCK, "run", *words, "--", PENSTOCK, "train", self.tiny, "--run", name),
            HOME=str(self.folder),
        )
        if result.code == 0:
            self.assert_trained(name)
        return result

    def offload_errand(self, name: str, before: Callable[[], None]) -> support.Result:
        """Parameters and states in files, over TCP, on a system where nothing is shared."""
        disk = {"device": "nvme", "nvme_path": str(self.temporary)}
        config = self.config(
            f"{name}.json",
            mesh={"pipe": 1, "data": 2},
            run={"steps": 2, "sample_bytes": 0},
            zero_optimization={"stage": 3, "offload_param": disk, "offload_optimizer": disk},
            launch={"transport": "tcp"},
        )
        result = self.under(before, PENSTOCK, "train", config, "--run", name)
        if result.code == 0:
            self.assertEqual(len(support.raw_lines(self.folder / name)), 3)
        return result

    NAMES = ("train", "resume", "kill", "tokenize", "run", "offload")

    def errand(self, which: str, name: str, before: Callable[[], None]) -> str:
        """Runs one.  Returns: "right", or the line that says why it is not done."""
        result = getattr(self, f"{which}_errand")(name, before)
        self.assert_nothing_left(within=5)
        if result.code == 0:
            return "right"
        self.assertIn(result.code, (1, 2, 3, 4), result.text)
        lines = [line for line in result.err.splitlines() if not line.startswith("  note: ")]
        said = [line for line in lines if line.startswith("penstock: ")] or lines
        self.assertEqual(len(said), 1, f"{which}: not one line:\n{result.text[-3000:]}")
        return said[0]
