"""penstock config check: the page's example, exit codes, JSON, and files that are none.

Needs the standard library only, and no torch.
"""

from __future__ import annotations

import json
import os
import re
import unittest

import support
from planning import PlannerTest

PAGE = support.ROOT / "docs" / "configuration.md"


class ConfigCheck(PlannerTest):
    def test_the_page_shows_what_is_printed(self) -> None:
        page = PAGE.read_text()
        (config,) = re.findall(r"`ds_config.json`:\n\n```json\n(.*?)```", page, flags=re.DOTALL)
        name = self.write("ds_config.json", config)
        result = self.penstock("config", "check", name, code=2)
        shown = f"```console\n$ penstock config check {name}\n{result.out}{result.err}```"
        block = r"```console\n\$ penstock config.*?```"
        now = re.sub(block, lambda _: shown, page, flags=re.DOTALL)
        if "PENSTOCK_UPDATE_GOLDEN" in os.environ:
            PAGE.write_text(now)
        self.assertEqual(now, page, f"PENSTOCK_UPDATE_GOLDEN=1 rewrites {PAGE.name}")
        self.assertIn("ds_config.json:5:59  ", result.out)
        blocks = [
            self.penstock("config", "check", name, "--for", taker, code=2).out
            for taker in ("train", "initialize")
        ]
        self.assertEqual("\n".join(blocks), result.out)

    def test_a_file_that_trains(self) -> None:
        name = self.write("gpt.json", (support.ROOT / "examples" / "gpt.json").read_bytes())
        text = (self.folder / name).read_text()
        lines = self.penstock("config", "check", name).out.splitlines()
        self.assertRegex(lines[1], r"^gpt\.json:\d+:\d+ +\S+ +used$")
        end = lines.index("would start")
        report = json.loads(self.penstock("config", "check", "-", "--json", text=text).out)
        self.assertTrue(report["train"]["ok"])
        self.assertFalse(report["initialize"]["ok"])
        keys = report["train"]["keys"]
        self.assertEqual(len(keys), end - 1)
        place = f"gpt.json:{keys[0]['line']}:{keys[0]['column']} "
        self.assertTrue(lines[1].startswith(place), place)

    def test_a_file_for_initialize(self) -> None:
        text = '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "fp16": null}'
        result = self.penstock("config", "check", "-", text=text)
        self.assertIn("for penstock.initialize:\nstandard input:1:2 ", result.out)
        self.assertTrue(result.out.endswith("would start\n"))
        report = json.loads(self.penstock("config", "check", "-", "--json", text=text).out)
        self.assertEqual([each["ok"] for each in report.values()], [False, True])
        self.penstock("config", "check", "-", "--for", "train", text=text, code=2)
        sizes = ("config", "check", "-", "--json", "--for", "initialize")
        report = json.loads(self.penstock(*sizes, text="{}", code=2).out)
        self.assertEqual(list(report), ["initialize"])
        self.assertIn("train_micro_batch_size_per_gpu is needed", report["initialize"]["objection"])

    def test_a_file_whose_values_are_for_a_trainer(self) -> None:
        text = json.dumps(
            {
                "bf16": {"enabled": "auto"},
                "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
                "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
                "gradient_clipping": "auto",
                "train_micro_batch_size_per_gpu": "auto",
            }
        )
        result = self.penstock("config", "check", "-", "--for", "initialize", text=text)
        self.assertRegex(result.out, r"params\.lr +refused .*\"auto\", which is for transformers'")
        self.assertRegex(
            result.out, r"bf16\.enabled +used +transformers' Trainer replaces \"auto\""
        )
        self.assertNotIn("absent: nothing is clipped", result.out)
        self.assertTrue(
            result.out.endswith("with transformers' Trainer; without: 1 key is refused\n"),
            result.out,
        )
        report = json.loads(self.penstock("config", "check", "-", "--json", text=text).out)
        self.assertEqual([each["ok"] for each in report.values()], [False, False])
        self.assertEqual([each["ok_with_trainer"] for each in report.values()], [False, True])
        sizes = '{"train_micro_batch_size_per_gpu": "auto"}'
        result = self.penstock("config", "check", "-", "--for", "initialize", text=sizes)
        self.assertRegex(
            result.out, r"would start with .* without: .*train_batch_size or .* needed"
        )
        wrong = text.replace("reduce_bucket_size", "reduce_buckt_size")
        result = self.penstock("config", "check", "-", text=wrong, code=2)
        self.assertIn("would not start: 2 keys are refused", result.out)
        self.penstock("config", "check", "-", "--for", "train", text=text, code=2)

    def test_what_is_refused_is_said_as_json_too(self) -> None:
        result = self.penstock("config", "check", "-", "--json", text='{"seeed": 1}', code=2)
        self.assertRegex(result.err, "^penstock: standard input: penstock train and penstock.init")
        report = json.loads(result.out)["train"]
        self.assertEqual(report["objection"], "1 key is refused")
        self.assertFalse(report["ok"])
        self.assertEqual(report["keys"][0]["verdict"], "refused")
        self.assertIn('did you mean "seed"?', report["keys"][0]["why"])
        self.assertEqual(report["keys"][-1]["line"], None)

    def test_values_that_do_not_fit_together(self) -> None:
        name = self.write("bad.json", '{"model": {"hidden": 30, "heads": 4}}')
        result = self.penstock("config", "check", name, "--json", code=2)
        report = json.loads(result.out)["train"]
        self.assertIn("must divide model.hidden = 30", report["objection"])
        self.assertFalse(report["ok"])

    def test_files_that_are_none(self) -> None:
        self.refuse("none.json", "config", "check", "none.json")
        self.refuse(r"bad\.json:1:2: ", "config", "check", self.write("bad.json", "{"))
        many = "{" + ",".join(f'"k{i}": 1' for i in range(60_000)) + "}"
        self.refuse("more than 1000 keys", "config", "check", self.write("many.json", many))
        self.refuse("which command\\? there are check", "config")


if __name__ == "__main__":
    unittest.main(verbosity=2)
