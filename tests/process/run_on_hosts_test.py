"""`penstock run`: ranks on several hosts.  A stand-in for ssh makes this machine each of them.

ssh_test.py does the same with sshd, on two network namespaces.  Needs the standard library.
Takes over 10 s: runs through several launchers, some of which wait for a silent host.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import unittest
from pathlib import Path

import support
from support import PENSTOCK, ProcessTest, losses

# Words of a connection: the host's name and a command for its shell.  A new session, as a host's
# processes are in one; "noisy" has a start-up file that writes, and "gone" cannot be reached.
SSH = """#!/bin/sh
case "$1" in
gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255;;
silent) exec sleep 1000;;
noisy) echo "Welcome to noisy"; echo penstock-host;;
esac
shift
exec setsid -w sh -c "$1"
"""
SHOW = """import os, sys
names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE LOCAL_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR "
         "CUDA_VISIBLE_DEVICES MINE")
line = "|".join(os.environ.get(name, "-") for name in names.split())
os.write(1, (line + "|" + "|".join(sys.argv[1:]) + "\\n").encode())
os.write(2, b"on stderr\\n")
"""
# Waits, until it is a rank that is to fail.
WAIT = """import os, signal, sys, time
print("rank", os.environ["RANK"], "runs", flush=True)
time.sleep(0.5 if os.environ["RANK"] == sys.argv[1] else 1000)
if sys.argv[2] == "exit": sys.exit(7)
os.kill(os.getpid(), signal.SIGKILL)
"""
CHILD = """import os, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
print("rank", os.environ["RANK"], "runs", flush=True)
time.sleep(1000)
"""


class HostsTest(ProcessTest):
    def setUp(self) -> None:
        super().setUp()
        self.ssh = self.file("ssh", SSH)
        self.ssh.chmod(0o755)
        # What is exported has this test's mark, by which processes that are left are found.
        self.file(".deepspeed_env", f"{support.MARK}={self.mark}\nMINE=mine\n")
        self.hostfile = self.file("hosts", "one slots=2\ntwo slots=2\n")

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def words(self, *words: object) -> list[object]:
        return [
            *(PENSTOCK, "run", "--ssh-command", self.ssh, "--master_addr", "127.0.0.1"),
            *words,
        ]

    def start_run(self, *words: object) -> support.Started:
        environment = self.environment(PENSTOCK_PYTHON=sys.executable, HOME=str(self.folder))
        return self.start(*self.words(*words), environment=environment)

    def run_hosts(self, *words: object) -> support.Result:
        return self.start_run(*words).wait()

    def agents(self) -> list[int]:
        """The processes `penstock host`, without the guards that they fork."""
        words = b"/penstock\0host\0"
        pids = [p for p in self.left() if Path(f"/proc/{p}/cmdline").read_bytes().endswith(words)]
        return [pid for pid in pids if int(support.stat_of(pid)[1]) not in pids]


class Started(HostsTest):
    def test_ranks_have_deepspeeds_variables_and_words(self) -> None:
        script = self.file("show.py", SHOW)
        result = self.run_hosts("-H", "hosts", script, "--name", "a b'c")
        self.assert_code(result, 0)
        common = "127.0.0.1|-|mine|--local_rank={}|--name|a b'c"
        expected = [
            f"{2 * host + local}|{local}|4|2|2|{host}|2|" + common.format(local)
            for host in range(2)
            for local in range(2)
        ]
        self.assertEqual(sorted(result.out.splitlines()), expected)
        self.assertEqual(result.err, "on stderr\n" * 4)
        self.assert_nothing_left()

    def test_slots_that_are_chosen_are_visible_devices(self) -> None:
        script = self.file("show.py", SHOW)
        self.file("hosts", "one slots=2\nnoisy slots=4\n")
        result = self.run_hosts("-H", "hosts", "--include", "noisy:1,3@one:1", script)
        self.assert_code(result, 0)
        fields = [line.split("|") for line in sorted(result.out.splitlines())]
        self.assertEqual([each[8] for each in fields], ["1", "1,3", "1,3"])
        self.assertEqual([each[1] for each in fields], ["0", "0", "1"])

    def test_this_machine_needs_no_ssh_and_no_hostfile(self) -> None:
        script = self.file("show.py", SHOW)
        result = self.run_hosts("--num_gpus", 3, "--no_local_rank", script, "word")
        self.assert_code(result, 0)
        lines = sorted(result.out.splitlines())
        self.assertEqual([line.split("|")[0] for line in lines], ["0", "1", "2"])
        self.assertTrue(all(line.endswith("|mine|word") for line in lines), lines)

    def test_a_program_that_is_no_script(self) -> None:
        result = self.run_hosts("-H", "hosts", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assert_code(result, 0)
        self.assertEqual(sorted(result.out.splitlines()), [f"{rank} of 4" for rank in range(4)])

    def test_much_output_arrives_whole(self) -> None:
        script = self.file("much.py", "for i in range(4000): print('x' * 99)\n")
        result = self.run_hosts("-H", "hosts", "--num_gpus", 1, "--no_local_rank", script)
        self.assert_code(result, 0)
        self.assertEqual(len(result.out), 2 * 4000 * 100)

    def test_logs_are_by_rank(self) -> None:
        result = self.run_hosts("-H", "hosts", "--log-dir", "logs", "--", "echo", "word")
        self.assert_code(result, 0)
        names = sorted(path.name for path in (self.folder / "logs").iterdir())
        self.assertEqual(names, [f"rank-{rank}.log" for rank in range(4)])

    def test_penstock_train_has_the_losses_of_one_host(self) -> None:
        tiny = self.config()
        self.assert_code(self.train(tiny, "--run", "own"), 0)
        words = ("-H", "hosts", "--", PENSTOCK, "train", tiny, "--run", "hosts-run")
        self.assert_code(self.run_hosts(*words), 0)
        self.assertEqual(losses(self.folder / "hosts-run"), losses(self.folder / "own"))
        self.assert_nothing_left()


class Ended(HostsTest):
    def assert_ended(self, result: support.Result, code: int, cause: str) -> None:
        self.assert_code(result, code)
        self.assertEqual(support.root_causes(result.err), [cause], result.text)
        self.assert_nothing_left(within=2)

    def test_a_rank_that_fails_is_named_with_its_host(self) -> None:
        script = self.file("wait.py", WAIT)
        words = ("-H", "hosts", "--no_local_rank", script)
        self.assert_ended(self.run_hosts(*words, 2, "exit"), 7, "rank 2 on two exited 7")
        killed = self.run_hosts(*words, 1, "kill")
        self.assert_ended(killed, 4, "rank 1 on one was killed by SIGKILL")
        self.assertIn("note: 3 other ranks were ended", killed.err)

    def test_a_host_that_cannot_be_reached(self) -> None:
        self.file("hosts", "one slots=1\ngone slots=1\n")
        result = self.run_hosts("-H", "hosts", "--", "true")
        cause = (
            f"cannot start penstock on host gone: {self.ssh} exited 255: "
            "ssh: connect to host gone port 22: No route to host"
        )
        self.assert_ended(result, 2, cause)
        self.assertNotIn("ranks were ended", result.err)
        self.assertIn(f"note: this must work, and ask nothing: {self.ssh} gone true", result.err)

    def test_a_program_that_a_host_lacks(self) -> None:
        result = self.run_hosts("-H", "hosts", "--penstock", "/no/penstock", "--", "true")
        self.assert_code(result, 2)
        self.assertRegex(result.err, "cannot start penstock on host (one|two): ")
        self.assertIn("/no/penstock", result.err)
        result = self.run_hosts("-H", "hosts", "--", "no-such-program")
        self.assert_code(result, 2)
        self.assertIn('host one: cannot run "no-such-program"', result.err)

    def test_a_killed_launcher_leaves_nothing(self) -> None:
        script = self.file("child.py", CHILD)
        started = self.start_run("-H", "hosts", "--no_local_rank", script)
        started.await_text("runs", times=4)
        self.left()
        os.kill(started.pid, signal.SIGKILL)
        started.await_end_of_all(10)

    def test_a_killed_connection_ends_the_run(self) -> None:
        script = self.file("child.py", CHILD)
        started = self.start_run("-H", "hosts", "--no_local_rank", script)
        started.await_text("runs", times=4)
        ssh = support.children(started.pid)[-1]
        os.kill(ssh, signal.SIGKILL)
        result = started.wait()
        cause = f"the connection to host two, with ranks 2 to 3, ended: {self.ssh} SIGKILL"
        self.assert_ended(result, 4, cause)

    def test_a_host_that_is_silent(self) -> None:
        script = self.file("child.py", CHILD)
        started = self.start_run("-H", "hosts", "--heartbeat", 2, "--no_local_rank", script)
        started.await_text("runs", times=4)
        agents = self.agents()
        self.assertEqual(len(agents), 2)
        os.kill(max(agents), signal.SIGSTOP)
        result = started.wait()
        self.assert_code(result, 5)
        self.assertIn("stopped answering for 2 s", result.err)
        os.kill(max(agents), signal.SIGCONT)
        started.await_end_of_all(10)

    def test_ctrl_c_reaches_every_rank(self) -> None:
        script = self.file("child.py", CHILD)
        started = self.start_run("-H", "hosts", "--no_local_rank", script)
        started.await_text("runs", times=4)
        os.kill(started.pid, signal.SIGINT)
        result = started.wait()
        self.assert_code(result, 130)
        self.assertEqual(result.err.count("KeyboardInterrupt"), 4, result.err)
        self.assert_nothing_left(within=2)

    def test_ctrl_c_while_a_host_is_waited_for(self) -> None:
        self.file("hosts", "one slots=1\nsilent slots=1\n")
        started = self.start_run("-H", "hosts", "--", "true")
        time.sleep(0.5)
        os.kill(started.pid, signal.SIGINT)
        self.assert_code(started.wait(20), 130)
        self.assert_nothing_left(within=2)

    def test_penstock_train_stops_after_its_step(self) -> None:
        tiny = self.config(run={"steps": 100000})
        words = ("-H", "hosts", "--", PENSTOCK, "train", tiny, "--run", "out")
        started = self.start_run(*words)
        started.directory = self.folder / "out"
        started.await_step(2)
        os.kill(started.pid, signal.SIGTERM)
        self.assert_code(started.wait(), 75)
        self.assert_nothing_left(within=2)

    def test_a_stopped_rank_of_penstock_train_is_named_with_its_host(self) -> None:
        tiny = self.config(run={"steps": 100000})
        words = ("-H", "hosts", "--heartbeat", 3, "--", PENSTOCK, "train", tiny, "--run", "out")
        started = self.start_run(*words)
        started.directory = self.folder / "out"
        started.await_step(2)
        ranks = {support.environment_of(pid).get("RANK"): pid for pid in self.left()}
        os.kill(ranks["3"], signal.SIGSTOP)
        result = started.wait()
        self.assert_code(result, 5)
        (cause,) = support.root_causes(result.err)
        self.assertIn("rank 3 on two stopped answering", cause)
        self.assertIn("is stopped by SIGSTOP", cause)
        self.assert_nothing_left(within=2)


if __name__ == "__main__":
    unittest.main()
