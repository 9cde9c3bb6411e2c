"""Planning commands with input that is wrong: one clear error, exit code 2, no file.

Needs the standard library only, and no torch.
"""

from __future__ import annotations

import os
import re
import unittest

from planning import SIZES, PlannerTest

# Files that are no schedule: for every command that reads one.
FILES = {
    "empty": ("", "no actions; expected a CSV row per rank"),
    "only commas": ("," * 400_000, "no actions"),
    "a million columns": ("0F0," * 999_999 + "0F0\n", r":1: 1000000 cells, at most 524288"),
    "two million rows": ("\n" * 2_000_000, r": 2000000 rows, at most 1048576; a row is a rank"),
    "junk behind an action": ("0F0,0B0junk\n", r":1:5: action \"0B0junk\" .* found \"junk\""),
    "a word": ("0F0,water\n", r":1:5: .*\"water\""),
    "a long line": ("0F0," + "x" * 1_000_000, r":1:5: .*expected a stage number"),
    "binary": (bytes(range(256)) * 20, r":1:1: a NUL byte: this is not a text file"),
    "binary without NUL": (bytes(range(1, 256)) * 20, r":1:1: .*expected a stage number"),
    "a byte order mark": (b"\xef\xbb\xbf0F0,0B0\n", r":1:1: .*byte order mark; save it as UTF-8"),
    "no microbatch": ("0F\n", r":1:1: .*expected a microbatch number, found the end"),
    "half a pair": ("(0F0;0B\n", r":1:1: "),
    "steps with an unknown instruction": (
        "stage 0 buffers=1\n  step 0: ForwardPas(buffer_id=0)\n",
        r':2:11: .*"ForwardPas.*ForwardPass',
    ),
    "steps without a stage": ("stages\n", r":1:"),
}
ACTIONS = '"0F0", "0B0"'
# JSON that is no schedule.
DOCUMENTS = {
    "": "no actions; expected a CSV row per rank",
    "{": r":1:2: .*end of input",
    "[]": r":1:1: the schedule: expected an object, found a list",
    "{}": r':1:1: no programs; expected "programs": a list of lists of actions',
    '{"programs": [], "ranks": 0}': r":1:14: .*no actions",
    '{"programs": [[]]}': r":1:14: .*no actions",
    '{"programs": {}}': r":1:14: programs: expected a list per rank, found an object",
    '{"programs": ["0F0"]}': r':1:15: programs: expected a list of actions, found "0F0"',
    '{"programs": [[1]]}': r':1:16: programs: expected an action such as "0F0", found 1',
    '{"programs": [["0F0x"]]}': r':1:16: action "0F0x" column 4: .*found "x"',
    '{"programs": [["0F0,0B0"]]}': r":1:16: .*expected the end of the action",
    f'{{"programs": [[{ACTIONS}]]}} x': r":1:\d+: ",
    f'{{"programs": [[{ACTIONS},]]}}': r":1:\d+: ",
    f'{{"programs": [[{ACTIONS}]], "programs": []}}': r':1:\d+: .*"programs"',
    f'{{"programs": [[{ACTIONS}]], "rank": 1}}': r'unknown key "rank"; did you mean "ranks"',
    f'{{"programs": [[{ACTIONS}]],\n"ranks": 2}}': r":2:10: ranks is 2, must be .* \(1\)",
    f'{{"programs": [[{ACTIONS}]], "stages": "1"}}': r'stages: expected an integer .* found "1"',
    f'{{"programs": [[{ACTIONS}]], "microbatches": 1e99}}': r"microbatches: expected an integer",
    f'{{"programs": [[{ACTIONS}]], "purpose": 1}}': r'expected "train" or "forward", found 1',
    f'{{"programs": [[{ACTIONS}]], "placement": [1]}}': r"stage 0 is said to be on rank 1, but",
    f'{{"programs": [[{ACTIONS}]], "placement": [0, 1]}}': r"2 entries, must have one per stage",
    f'{{"programs": [[{ACTIONS}]], "name": "{"x" * 100_000}\x01"}}': r":1:\d+: ",
    "[" * 100_000: r":1:\d+: ",
}
# Schedules that are none: verify objects, the others cannot go on.
SCHEDULES = {
    "a rank is missing": (
        "0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n",
        r"stage 1 runs nowhere \[S004\]\n.*stages 0 to 2; is the row of a rank missing\?",
    ),
    "a rank is idle": ("0F0,0B0\n\n1F0,1B0\n", r"rank 1 has no actions \[S004\]"),
    "a stage is on two ranks": (
        "0F0,0B0,0F1\n1F0,1B0,1F1,1B1,0B1\n",
        r"rank 1 step 4: 0B1 runs stage 0 \[S003\]",
    ),
    "many columns": ("0F0," * 499_999 + "0F0\n", r"499999 objections\n.*0F0 runs again"),
}


class BadInput(PlannerTest):
    order = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"

    def readers(self, name: str) -> list[tuple[object, ...]]:
        return [
            ("simulate", name),
            ("schedule", "diff", name, name),
            ("schedule", name, "--format", "svg", "-o", "out.svg"),
        ]

    def test_files_that_are_no_schedule(self) -> None:
        for kind, (content, pattern) in FILES.items():
            name = self.write("bad.csv", content)
            for words in [("verify", name), *self.readers(name)]:
                with self.subTest(kind, command=words):
                    self.refuse(r"bad\.csv.*" + pattern, *words)

    def test_json_that_is_no_schedule(self) -> None:
        for text, pattern in DOCUMENTS.items():
            name = self.write("bad.json", text)
            for words in [("verify", name), *self.readers(name)]:
                with self.subTest(text[:80], command=words):
                    self.refuse(r"bad\.json.*" + pattern, *words)

    def test_costs_in_a_schedule(self) -> None:
        program = '"programs": [["0F0", "0B0"]]'
        wrong = {
            '{"foward": 1}': r'plan.json:2:12: unknown key "foward" in the costs; .*"forward"',
            '{"latency": -1}': r"plan.json:2:23: latency: expected 0, or a number from 1e-30 to",
            "1": r"plan.json:2:11: the costs: expected an object, found 1",
        }
        for costs, pattern in wrong.items():
            name = self.write("plan.json", f'{{{program},\n "costs": {costs}}}')
            self.refuse(pattern, "simulate", name)
            self.refuse(pattern, "schedule", name, "--format", "html", "-o", "out.html")
            self.refuse(pattern, "schedule", name, "--format", "json", "-o", "out.json")
            self.penstock("verify", name)

    def test_schedules_that_do_not_verify(self) -> None:
        for kind, (content, pattern) in SCHEDULES.items():
            name = self.write("bad.csv", content)
            with self.subTest(kind, command="verify"):
                result = self.penstock("verify", name, code=1)
                self.assertRegex(result.err, pattern)
                self.assertLess(len(result.err), 4000, "short enough to be read")
            for words in self.readers(name):
                if words[1] == "diff":  # Compares what it finds.
                    continue
                with self.subTest(kind, command=words):
                    self.refuse(pattern, *words)

    def test_files_that_cannot_be_read(self) -> None:
        (self.folder / "folder").mkdir()
        os.mkfifo(self.folder / "pipe")
        # Root may read every file; /proc/1/mem, nobody.
        reasons = {"none.csv": "No such file", "folder": "Is a directory", "/proc/1/mem": ""}
        reasons["pipe"] = "a pipe that nobody writes to"
        for name, reason in reasons.items():
            for words in [("verify", name), *self.readers(name)]:
                with self.subTest(name, command=words):
                    self.refuse(rf'"{name}": cannot be read: {reason}', *words)

    def test_names(self) -> None:
        for words in (("schedule",), ("simulate",), ("schedule", "diff", "1f1b")):
            unknown = r'unknown schedule "zbb"; did you mean "zbv"\?\n  note: known schedules: gp'
            self.refuse(unknown, *words, "zbb", *SIZES)
        self.refuse(r"no file \"1f1b\"\n.*needs sizes: --ranks P", "simulate", "1f1b")
        self.refuse(r"simulate: --microbatches is required\n", "simulate", "1f1b", "--ranks", 4)

    def test_sizes(self) -> None:
        def refuse(pattern: str, name: str, ranks: int, microbatches: int, *more: object) -> None:
            words = (name, "--ranks", ranks, "--microbatches", microbatches, *more)
            for command in ("schedule", "simulate"):
                self.refuse(pattern, command, *words)

        least = r"must be at least stages \(8\)\n  note: nearest sizes that work: microbatches=8"
        refuse(least, "dualpipev", 4, 7)
        work = r"nearest sizes that work: microbatches=8 or microbatches=10"
        refuse(work, "interleaved_1f1b", 4, 9)
        one = r"stages_per_rank is 2, must be 1.*\n.* sizes that work: stages_per_rank=1"
        refuse(one, "1f1b", 4, 8, "--stages-per-rank", 2)
        least = r"schedule Schedule1F1B: microbatches is 3, must be at least ranks \(4\) in torch's"
        refuse(least, "Schedule1F1B", 4, 3)
        refuse(r"ranks is 0, must be 1 to", "gpipe", 0, 8)
        refuse(r"microbatches is -3, must be 1 to", "gpipe", 4, -3)
        refuse(r"must be at most", "gpipe", 1_000_000, 1_000_000)
        for number in ("99999999999", "1.5"):
            integer = rf'--ranks: expected an integer that is not too large, found "{number}"'
            self.refuse(integer, "schedule", "gpipe", "--ranks", number, "--microbatches", 8)
        word = r"simulate: --ranks: expected a number, found \"x\""
        self.refuse(word, "simulate", "gpipe", "--ranks", "x", "--microbatches", 8)
        for words in (("--format", "grid"), ("--lowered", "torch"), ("--dialect", "deepspeed")):
            pattern = rf"NAME is required with {words[0]}"
            self.refuse(pattern, "schedule", *words, "-o", "out")

    def test_options_that_the_chosen_form_cannot_use(self) -> None:
        name = self.write("good.csv", self.order)
        by_name = ("1f1b", *SIZES)
        for form in ("grid", "csv"):
            for words in (("--forward", "abc"), ("--costs", "/nonexistent")):
                none = rf"schedule: {words[0]}: --format {form} shows no costs"
                self.refuse(none, "schedule", *by_name, "--format", form, *words)
        timetable = ("schedule", *by_name, "--format", "timetable", "--keep", "x", "--input", 1)
        self.refuse(r"--input, --keep: --format timetable shows no costs", *timetable)
        dialect = ("schedule", *by_name, "--dialect", "deepspeed", "--latency", "junk")
        self.refuse(r"schedule: --latency: instructions have no costs", *dialect)
        self.refuse(r"--forward: ", "schedule", "--forward", 3)
        for words in (("--format", "svg"), ("--lowered", "torch"), ("--forward", 3)):
            behind = rf"schedule: {words[0]}: what compare takes comes behind it"
            self.refuse(behind, "schedule", *words, "compare", *SIZES)
        behind = r"--format: what diff takes comes behind it"
        self.refuse(behind, "schedule", "--format", "svg", "diff", name, name)
        sizes = r'sizes are of schedules by name, "good.csv" is a file that has its own'
        for command in ("simulate", "schedule", "verify"):
            self.refuse(sizes, command, name, "--ranks", 99, "--microbatches", 7)
        self.refuse(sizes, "schedule", "diff", name, name, *SIZES)
        form = r'--format compute_comms is of files, "1f1b" is made by its name'
        for command in ("simulate", "verify"):
            self.refuse(form, command, *by_name, "--format", "compute_comms")
        for option in ("--reduce", "--gather"):
            none = rf"{option}: nothing is gathered or reduced in a comparison"
            self.refuse(none, "schedule", "compare", *SIZES, option, 5)

    def test_pages_that_no_browser_would_open(self) -> None:
        words = ("schedule", "gpipe", "--ranks", 64, "--microbatches", 20_000)
        for form in ("html", "trace"):
            pattern = r"a page or a trace of 2560000 actions: at most 2000000\n.*fewer microbatches"
            self.refuse(pattern, *words, "--format", form, "-o", "out")

    def test_costs(self) -> None:
        name = self.write("good.csv", self.order)

        def refuse(pattern: str, *words: object) -> None:
            self.refuse(pattern, "simulate", name, *words)

        refuse(r"forward: 3 stages, the schedule has 2", "--forward", "1,2,3")
        refuse(r"--forward -1: expected 0, or a number from 1e-30 to 1e30", "--forward", "-1")
        for text in ("nan", "inf", "1e999", "1e308", "1e-310"):
            refuse(rf"--weight {text}: expected .*number", "--weight", text)
        refuse(r"--input 1,,2: expected a number, .*found \"\"", "--input", "1,,2")
        refuse(r"--backward 1x: expected a number, .*found \"1x\"", "--backward", "1x")
        refuse(r"--latency 1,2: takes one number", "--latency", "1,2")
        refuse(r"keep: 1.5; expected a share from 0 to 1", "--keep", 1.5)

    def test_costs_at_the_ends_of_their_range_are_drawn(self) -> None:
        name = self.write("good.csv", self.order)
        pairs = (("1e30", "1e-30"), ("1e-30", "1e30"), ("1e-30", "1e-30"), ("0", "0"))
        for first, second in pairs:
            costs = ("--forward", first, "--backward", second, "--activation", f"{second},{first}")
            for more in ((), ("--latency", "1e30")):
                out = self.penstock("simulate", name, *costs, *more, "--json").out
                self.assertNotRegex(out, r"\b(inf|nan)\b")
                self.penstock("simulate", name, *costs, *more)
                for form in ("svg", "html", "trace", "json"):
                    words = ("schedule", name, "--format", form, *costs, *more)
                    self.assertNotRegex(self.penstock(*words).out, r"[ :,](-?inf|nan)\b")
        spread = ("--forward", "1e30", "--backward", "1e-29")
        self.assertNotIn("inf", self.penstock("schedule", "compare", *SIZES, *spread).out)

    def test_costs_files(self) -> None:
        name = self.write("good.csv", self.order)
        wrong = {
            '{"forward": }': r"costs.json:1:13: ",
            '{"foward": 1}': r'costs.json:1:2: unknown key "foward" in the costs; .*"forward"',
            '{"forward": "1"}': r'costs.json:1:13: forward: expected a number, found "1"',
            '{"forward": [1, -2]}': r"costs.json:1:17: forward: expected 0, or a .*, found -2",
            '{"bandwidth": 1e-300}': r"1:15: bandwidth: expected 0, or a number .*, found 1e-300",
            '{"forward": [1, [2, null]]}': r"1:21: forward: expected a number, found null",
            '{"latency": NaN}': r"costs.json:1:13: JSON has no number NaN",
            '{"forward": [1, 2, 3]}': r"forward: 3 stages, the schedule has 2",
            '{"forward": [1, [1, 2, 3]]}': r"forward stage 1: 3 microbatches, the schedule has 2",
            '{"links": [{"from": 0}]}': r'1:12: links: a link needs "from" and "to"',
            '{"links": [{"from": 0, "to": 7}]}': r"link 0 to 7: the schedule has ranks 0 to 1",
            "[1, 2]": r"costs.json:1:1: the costs: expected an object, found a list",
            "": r"costs.json:1:1: the text is empty",
        }
        for text, pattern in wrong.items():
            with self.subTest(text):
                self.write("costs.json", text)
                self.refuse(pattern, "simulate", name, "--costs", "costs.json")
        self.refuse(
            r'costs file "none.json": cannot be read: No such file',
            *("simulate", name, "--costs", "none.json"),
        )

    def test_words(self) -> None:
        name = self.write("good.csv", self.order)
        unknown = r'unknown option "--chanels"; did you mean "--channels"\?'
        self.refuse(unknown, "verify", name, "--chanels", "x")
        self.refuse(r"--channels: tcp not in \{tagged,", "verify", name, "--channels", "tcp")
        self.refuse(r"--format: csv not in \{compute_only,", "simulate", name, "--format", "csv")
        self.refuse(r"--format: xml not in \{grid,", "schedule", "1f1b", *SIZES, "--format", "xml")
        self.refuse(r"--lowered: x not in", "schedule", "1f1b", *SIZES, "--lowered", "x")
        for number in ("-1", "x", "1.5", "99999999999"):
            pattern = rf'--max-activations: expected an integer from 0 to \d+, found "{number}"'
            result = self.penstock("verify", name, "--max-activations", number, code=2)
            self.assertRegex(result.err, pattern)
            self.assertLess(len(result.err), 200)
        self.refuse(r"verify: schedule is required", "verify")
        self.refuse(r"verify: unexpected word \"b.csv\"", "verify", name, "b.csv")
        self.refuse(r"diff: b is required", "schedule", "diff", name)
        self.refuse(r"--costs needs a value", "simulate", name, "--costs")
        self.refuse(
            r"has messages already",
            *("simulate", "-", "--lowered", "torch"),
            text="0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
        )
        self.refuse(
            r"schedule: --dialect deepspeed has one form",
            *("schedule", "1f1b", *SIZES, "--dialect", "deepspeed", "--format", "csv"),
        )

    def test_help_of_every_command(self) -> None:
        for words in ("", "schedule", "schedule compare", "schedule diff", "verify", "simulate"):
            out = self.penstock(*words.split(), "--help").out
            self.assertIn("Example", out)
            longest = max(out.splitlines(), key=len)
            self.assertLess(len(longest), 140, longest)
            self.assertFalse(re.search(r"[^\x00-\x7f]", out), words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
