"""Plans of published runs: each table is met as well as it was, and some as well as they should be.

reached.json has what is reached today for each table, by `replay.py --write-reached`: a plan that
meets a table less well fails here.  It is a record and no aim; docs/plan.md says which tables miss,
and why.  Needs the standard library, and a build without torch.
"""

from __future__ import annotations

import json
import unittest

import replay

# A change of another part of the plan may move a median so far, in shares of 1.
SLACK = 0.005
# Tables that meet the aim: half of the rows within 8 %, nine of ten within 20 %, in order.
MET = {
    "mlm-sc21-t1", "korth-t5", "korth-530b-dp8", "zb-t4", "megascale-t2", "llama3-t4", "titan-a100",
    "mpt-a100-80", "mpt-a100-40", "mpt-h100", "bs-1b3-2",
}  # fmt: skip
ENOUGH = ("median", "memory", "memory_worst")  # The others are the better the larger.


class Published(unittest.TestCase):
    def test_bubbles_of_measured_passes_are_the_published_ones(self) -> None:
        """To their last digit.  In zb-t4, schedules that a solver made are not those here."""
        seen = 0
        for row in replay.rows():
            is_made = replay.table_of(row) == "zb-t5" or row["schedule"] in ("1f1b", "zb_h1")
            if "bubble" not in row["measured"] or not is_made:
                continue
            seen += 1
            difference = replay.bubble(row) - row["measured"]["bubble"]
            self.assertLessEqual(abs(difference), 1e-4, row["id"])
        self.assertEqual(seen, 35)

    def test_tables_are_met_as_before(self) -> None:
        reached = json.loads(replay.REACHED.read_text())
        found = replay.replay(set(replay.sources()))
        self.assertEqual(set(found), set(reached))
        for table, plans in found.items():
            summary = vars(replay.summary(plans))
            for name, value in reached[table].items():
                with self.subTest(table=table, what=name):
                    if name in ENOUGH:
                        self.assertLessEqual(summary[name], value + SLACK)
                    else:
                        self.assertGreaterEqual(summary[name], value - SLACK)

    def test_what_is_planned_is_what_was_measured_where_it_is_so_far(self) -> None:
        """The aim: half of a table within 8 %, nine rows of ten within 20 %, in the right order."""
        for table, plans in replay.replay(MET).items():
            summary = replay.summary(plans)
            self.assertLessEqual(summary.median, 0.08, table)
            self.assertGreaterEqual(summary.within, 0.9, table)
            if summary.order is not None:
                self.assertGreaterEqual(summary.order, 0.85, table)


if __name__ == "__main__":
    unittest.main()
