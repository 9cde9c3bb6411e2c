"""The HTML page of a schedule in a real browser, headless; skipped where there is none.

Needs the standard library only, and chromium or chrome for what it skips otherwise.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "published"))

import recorded_run
import shapes
import support
from support import PENSTOCK, ProcessTest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), "")


@unittest.skipUnless(BROWSER, "no chromium and no chrome")
class Page(ProcessTest):
    def page(self, *words: object) -> str:
        path = self.folder / "page.html"
        made = ("schedule", *words, "--format", "html", "-o", path)
        self.assert_code(self.run_words(PENSTOCK, *made), 0)
        return path.read_text()

    def shown(self, page: str, fragment: str = "", script: str = "") -> str:
        """The document after the page's script, and `script` behind it, have run."""
        path = self.folder / "shown.html"
        path.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
        words = [BROWSER, "--headless", "--disable-gpu", "--window-size=1400,900"]
        words += ["--no-sandbox"] if os.geteuid() == 0 else []
        words += ["--virtual-time-budget=2000", "--dump-dom", f"file://{path}#{fragment}"]
        done = subprocess.run(words, capture_output=True, timeout=support.PATIENCE, check=False)
        return done.stdout.decode()

    def selected(self, document: str) -> str:
        found = re.search(r'<output id="selected"[^>]*>(.*?)</output>', document, re.DOTALL)
        return html.unescape(found[1]) if found else ""

    def test_says_what_an_action_waited_for(self) -> None:
        page = self.page("1f1b", "--ranks", 8, "--microbatches", 32, "--latency", 0.5)
        self.assertEqual(
            self.selected(self.shown(page, "0/2B0")),
            "2B0: backward of microbatch 0 on stage 2 · rank 2, 24 to 26, takes 2 · "
            "waited 15 for 3B0 of rank 3, which ended at 23.5 · memory 6 of at most 6",
        )
        self.assertIn("There is no action 9F0", self.selected(self.shown(page, "0/9F0")))

    def test_keys_walk_along_a_rank_over_the_ranks_and_back_in_time(self) -> None:
        page = self.page("1f1b", "--ranks", 4, "--microbatches", 8)
        press = "const press = (key) => views[0].canvas.dispatchEvent(new KeyboardEvent("
        press += "'keydown', {key, bubbles: true}));"

        def after(*keys: str) -> str:
            script = press + "".join(f"press('{key}');" for key in keys)
            return self.selected(self.shown(page, script=script)).partition(":")[0]

        self.assertEqual(after("ArrowRight"), "0F0")
        self.assertEqual(after("ArrowRight", "ArrowRight", "ArrowRight"), "0F2")
        self.assertEqual(after("ArrowRight", "ArrowDown"), "1F0")
        self.assertEqual(after("ArrowDown", "ArrowDown", "Enter"), "0F0", "1F0 waited for 0F0")
        self.assertEqual(after("ArrowRight", "Escape"), "")

    def test_zoom_and_pan_stay_within_the_time(self) -> None:
        page = self.page("1f1b", "--ranks", 4, "--microbatches", 8)

        def visible(actions: str) -> list[float]:
            script = f"const v = views[0]; {actions}; document.title = `${{v.begin}} ${{v.end}}`;"
            title = re.search(r"<title>(.*?)</title>", self.shown(page, script=script))[1]
            return [float(number) for number in title.split()]

        self.assertEqual(visible(""), [0, 33])
        self.assertEqual(visible("v.zoom(0.5, 0)"), [0, 16.5])
        self.assertEqual(visible("v.zoom(0.5, 0); v.move(0.5)"), [8.25, 24.75])
        self.assertEqual(visible("v.zoom(0.5, 0); v.move(9)"), [16.5, 33])
        self.assertEqual(visible("v.zoom(0.5, 7); v.zoom(8)"), [0, 33])

    def test_a_point_of_the_canvas_is_an_action(self) -> None:
        page = self.page("zbv", "--ranks", 4, "--microbatches", 8)
        script = """const v = views[0];
            const names = v.timeline.rows[2].lanes[0];
            const wrong = [];
            for (let bar = 0; bar < names.count; ++bar) {
              const place = {row: 2, lane: 0, bar};
              const box = v.boxOf(place);
              const found = v.placeAt(box.x + box.width / 2, box.y + box.height / 2);
              if (!samePlace(place, found)) wrong.push(bar);
            }
            document.title = `${names.count} bars, wrong: ${wrong}`;"""
        self.assertIn("<title>48 bars, wrong: </title>", self.shown(page, script=script))

    def test_something_is_drawn_in_every_row(self) -> None:
        page = self.page("zbv", "--ranks", 4, "--microbatches", 8)
        script = """const v = views[0];
            drawTimeline(v, true);
            const colours = (r) => {
              const {left, width, laneHeight} = v.geometry;
              const data = v.canvas.getContext('2d').getImageData(
                left, v.rowTop(r) + laneHeight / 2, width, 1).data;
              const seen = new Set();
              for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join());
              return v.timeline.colours.flat().filter((c) => seen.has(
                [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16)).join())).length;
            };
            document.title = v.timeline.rows.map((row, r) => colours(r)).join();"""
        title = re.search(r"<title>(.*?)</title>", self.shown(page, script=script))[1]
        # F, I and W of two stages, and the grey ones that no action of this schedule has.
        self.assertTrue(all(int(count) >= 6 for count in title.split(",")), title)

    def planned(self) -> str:
        """The page of a plan of layers that need no torch."""
        row = {
            "layers": 8, "hidden": 1024, "heads": 16, "kv_heads": 16, "ffn": 4096,
            "vocabulary": 1024, "sequence": 512, "tensor": 1, "microbatch": 1, "tokens_cut": False,
        }  # fmt: skip
        layers = shapes.layers_file(row, {"attention": "flash"})
        (self.folder / "layers.json").write_text(json.dumps(layers))
        model = {"layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 1024}
        config = {
            "train_batch_size": 64, "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"}, "model": model | {"sequence_length": 512},
        }  # fmt: skip
        (self.folder / "run.json").write_text(json.dumps(config))
        path = self.folder / "page.html"
        words = ("plan", self.folder / "run.json", "--layers", self.folder / "layers.json")
        words += ("--device", "h100-sxm", "--world", "4", "--format", "html", "-o", path)
        self.assert_code(self.run_words(PENSTOCK, *words), 0)
        return path.read_text()

    def test_a_clicked_candidate_says_where_its_time_and_memory_go(self) -> None:
        page = self.planned()
        script = """document.querySelectorAll("circle.candidate")[2]
              .dispatchEvent(new MouseEvent("click", {bubbles: true}));
            document.title = [...document.querySelectorAll(".chosen")].map(
              (each) => each.tagName + each.id).join();"""
        document = self.shown(page, script=script)
        chosen = re.search(r"<title>(.*?)</title>", document)[1]
        self.assertEqual(chosen, "circlecandidate-3,gtime-3,gmemory-3,TR")
        said = re.search(r'<output id="candidate"[^>]*>(.*?)</output>', document, re.DOTALL)[1]
        label, times, memory = said.split("\n")
        self.assertRegex(label, r"^3: pipe \d x data \d, ZeRO \d, .* ms, .* MiB$")
        shares = [float(share) for share in re.findall(r"([\d.]+)%", times)]
        self.assertIn("products: ", times)
        self.assertAlmostEqual(sum(shares), 100, delta=0.5)
        self.assertRegex(memory, "parameters: .*; activations: .* MiB")

    def test_the_filter_leaves_candidates_of_a_size(self) -> None:
        page = self.planned()
        script = """const only = document.getElementById("only");
            only.value = "pipe 2, zero 1";
            only.dispatchEvent(new Event("input"));
            document.title = candidates.filter((each) => each.row.style.display === "")
              .map((each) => each.label.split(", ").slice(0, 2).join()).join(";");"""
        title = re.search(r"<title>(.*?)</title>", self.shown(page, script=script))[1]
        labels = [label.partition(": ")[2] for label in title.split(";")]
        self.assertEqual(set(labels), {"pipe 2 x data 2,ZeRO 1"})

    def test_a_large_page_opens(self) -> None:
        words = ("interleaved_1f1b", "--ranks", 64, "--stages-per-rank", 4, "--microbatches", 256)
        page = self.page(*words)
        self.assertLess(len(page), 4_000_000)
        self.assertIn("255B255: backward", self.selected(self.shown(page, "0/255B255")))

    def report_page(self) -> str:
        recorded_run.write_run(self.folder / "run")
        words = ("report", "run", "--step", 1, "-o", "report.html")
        self.assert_code(self.run_words(PENSTOCK, *words), 0)
        return (self.folder / "report.html").read_text()

    def test_a_measured_action_says_how_it_differs_from_the_simulated_one(self) -> None:
        self.assertEqual(
            self.selected(self.shown(self.report_page(), "0/0B0")),
            "0B0: backward of microbatch 0 on stage 0 · rank 0, 11 ms to 15 ms, takes 4 ms · "
            "waited 7 ms for 1B0 of rank 1, which ended at 10.5 ms · "
            "simulated, with the fitted costs: starts 5.5 ms earlier, takes 2 ms less · "
            "memory 2 of at most 2",
        )

    def test_two_timelines_have_one_scale_and_zoom_together(self) -> None:
        script = """views[1].zoom(0.5, 0);
            document.title = views.map((v) => `${v.begin} ${v.end}`).join();"""
        shown = self.shown(self.report_page(), script=script)
        self.assertIn("<title>0 9.5,0 9.5</title>", shown)

    def test_a_click_in_a_table_shows_the_action(self) -> None:
        script = "document.querySelector('td a').click();"
        shown = self.selected(self.shown(self.report_page(), script=script))
        self.assertRegex(shown, r"^\d[FB]\d: ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
