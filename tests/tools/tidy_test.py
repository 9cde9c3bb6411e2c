"""tools/tidy.py finds what it says it finds, in a small tree made here, and nothing else."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import tidy

CMAKE = """\
penstock_layer(core USES Threads::Threads)  # a comment with (parentheses)
penstock_layer(mesh USES core PRIVATE_USES json::json)
penstock_layer(schedule USES core)
penstock_layer(lower USES schedule
  PRIVATE_USES mesh)
penstock_layer(render USES lower)
penstock_public(plan core mesh schedule lower render)
penstock_layer(comm TORCH USES core)
penstock_layer(execute TORCH USES lower comm)
penstock_public(runtime plan comm execute)
"""

TESTS = """\
penstock_test_program(plan_tests LINKS penstock::plan
  FOLDERS core  # a comment
          lower)
penstock_test_program(runtime_tests FOLDERS comm)
"""

OPENING = "// What it is.\n//\n// Who reads it, and what it does not know.\n#pragma once\n"


class TidyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("CMakeLists.txt", CMAKE)
        self.write("tests/CMakeLists.txt", TESTS)
        for layer in ("core", "mesh", "schedule", "lower", "comm", "execute"):
            self.write(f"penstock/{layer}/{layer}.h", OPENING)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def findings(self):
        return [str(finding) for finding in tidy.check_tree(self.root)]

    def expect(self, *parts):
        """One finding for each of `parts`, which it contains."""
        findings = self.findings()
        self.assertEqual(len(findings), len(parts), findings)
        for finding, part in zip(findings, parts, strict=True):
            self.assertIn(part, finding)

    def test_files_of_a_layer_do_not_give_one_name_to_two_things(self):
        unnamed = "namespace penstock::core {{\nnamespace {{\n\n{}\n\n}}  // namespace\n}}\n"
        self.write("penstock/core/a.cpp", unnamed.format(
            "class Reader {\n};\nusing Clock = std::steady;\nint place(int a) {\n  return a;\n}"
        ))  # fmt: skip
        self.write("penstock/core/b.cpp", unnamed.format(
            "struct Reader {\n};\nusing Clock = std::steady;\n"
            "int place(int b) {\n  return b;\n}\nint place(long c) {\n  return 1;\n}"
        ))  # fmt: skip
        self.write("penstock/mesh/c.cpp", unnamed.format("class Reader {\n};"))
        self.expect("b.cpp:1: Reader is a name of penstock/core/a.cpp, too",
                    "b.cpp:1: place is a name of penstock/core/a.cpp, too")  # fmt: skip

    def test_a_file_includes_the_standard_headers_that_it_uses(self):
        header = "// Sorts.\n// Knows nothing.\n#pragma once\n#include <array>\n"
        self.write("include/penstock/core/sort.h", header)
        self.write(
            "penstock/core/sort.cpp",
            '#include "penstock/core/sort.h"\n#include <vector>\n'
            "std::array<int, 2> a;  // The header has it.  std::mutex: a comment.\n"
            "std::ranges::sort(a);\n",
        )
        self.write(
            "penstock/core/other.cpp", '#include "penstock/core/sort.h"\nstd::array<int, 2> b;\n'
        )
        self.expect(
            "other.cpp:1: std::array needs #include <array>",
            "sort.cpp:1: std::ranges::sort needs #include <algorithm>",
        )

    def test_what_is_decided_in_one_place_is_not_decided_in_another(self):
        self.write(
            "penstock/execute/trainer.cpp",
            "#include <cmath>\n"
            "if (zero.stage != config::ZeroStage::Off) cut();\n"
            "const bool whole = persistence_.stays(name, elements);\n"
            "factor = clipping / (report.grad_norm + 1e-6);\n"
            "if (!std::isfinite(report.grad_norm)) skip();\n"
            "ZeroStage stage = ZeroStage::Off;  // No decision: a default.\n",
        )
        self.write("penstock/mesh/states.cpp", "rate = step / warmup_num_steps;\n")
        self.expect("what a stage", "too small", "clipped", "is skipped", "how the learning rate")

    def test_sizes_and_coordinates_of_axes_are_the_meshs(self):
        self.write(
            "penstock/execute/ranks.cpp",
            "const std::int32_t first = rank / layout.mesh.data;\n"
            "const std::int32_t pipe = mesh.coordinate(Rank(3)).pipe;\n"
            "const std::int32_t ranks = mesh_->shape().pipe * replicas;\n"
            # As these may be:
            "const mesh::Shape shape{.pipe = 2, .data = replicas};\n"
            "const std::int64_t ranks = layout.mesh.size(Role::Pipe) * shape[Axis::Data];\n"
            'throw ConfigError(str("use mesh.data ", count));  // Not mesh.pipe.\n'
            "read(config.data.path, value.data, layout.pipe());\n",
        )
        self.write("penstock/core/mesh/ranks.cpp", "return coordinate.pipe * shape.data;\n")
        role = "is asked by role"
        self.expect(role, role, role)

    def test_a_headers_earlier_name_may_be_in_a_layer_below_it(self):
        include = '//\n// Old programs.\n#pragma once\n#include "penstock/execute/execute.h"\n'
        title = "// The header penstock/execute/execute.h"
        earlier = f"{title} by its earlier name, for one version."
        self.write("penstock/comm/run.h", f"{earlier}\n{include}")
        self.write("penstock/comm/other.h", f"{title}, and more.\n{include}")
        self.expect("layer comm may not include penstock/execute/execute.h")

    def test_foreign_files_are_opened_in_one_place_and_programs_print_in_one(self):
        self.write(
            "penstock/lower/reader.cpp",
            "#include <cstdio>\n#include <fstream>\n"
            "std::ifstream file(path);\n"
            "const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);\n"
            "std::FILE* file = std::fopen(path.c_str(), kRead);\n"
            'std::cerr << "penstock: " << name;\n'
            "std::fputs(text.c_str(), stdout);\n"
            # As these may be:
            'std::ifstream("/proc/sys/kernel/random/boot_id") >> id;\n'
            "const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY);\n"
            "std::snprintf(text, sizeof text, kForm, number);\n",
        )
        self.write("penstock/core/core.cpp", "int file = ::open(path.c_str(), O_RDONLY);\n")
        self.write("python/penstock/a.py", 'text = path.read_text(encoding="utf-8")\n')
        elsewhere = "core/foreign_file.h"
        printing = "core/program_output.h"
        self.expect(
            *(elsewhere, elsewhere, elsewhere, printing, printing),
            "_foreign_files.py",
        )

    def test_python_imports_nothing_behind_a_higher_wall(self):
        self.write("python/penstock/__init__.py", "from penstock.zero import Init\n")
        self.write("python/penstock/zero/__init__.py", "from penstock._engines.made import Init\n")
        self.write("python/penstock/_engines/made.py", "import penstock.errors\nInit = 1\n")
        self.write("python/penstock/errors.py", "")
        self.expect()
        self.write(
            "python/penstock/_engines/made.py", "def f():\n    from penstock import zero, errors\n"
        )
        self.write("python/penstock/errors.py", "from ._engines import made\n")
        self.expect(
            "made.py:2: _engines may not import penstock.zero: the names",
            "circle of modules: penstock._engines.made -> penstock.",
            "circle of rooms: penstock._engines -> penstock.",
            "errors.py:1: what is its own may not import penstock._engines.made",
        )

    def test_python_imports_in_no_circle(self):
        engines = "python/penstock/_engines"
        self.write(f"{engines}/steps/a.py", "from penstock._engines.steps import b\n")
        self.write(f"{engines}/steps/b.py", "if TYPE_CHECKING:\n    from .a import A\n")
        self.write(f"{engines}/update/c.py", "from penstock._engines.saving.d import D\n")
        self.write(f"{engines}/saving/d.py", "")
        self.write(f"{engines}/saving/e.py", "from ..update import c\n")
        steps, rooms = "penstock._engines.steps", "penstock._engines"
        self.expect(
            f"circle of rooms: {rooms}.saving -> {rooms}.update -> {rooms}.saving",
            f"circle of modules: {steps}.a -> {steps}.b -> {steps}.a",
        )

    def test_a_tidy_tree_has_no_findings(self):
        self.write(
            "penstock/execute/a.cpp", '#include <ATen/ATen.h>\n#include "penstock/core/core.h"\n'
        )
        self.write("penstock/core/version.h.in", "// generated\n")
        self.write(
            "penstock/lower/a.cpp", '#include "penstock/core/version.h"\nstatic_assert(true);\n'
        )
        self.write("tests/lower/a_test.cpp", '#include "penstock/mesh/mesh.h"\n')
        self.write("tests/golden/grid.txt", "0F0\n")
        self.write("build/junk.cpp", "assert" + "(false);\n")
        self.expect()

    def test_a_layer_includes_what_it_uses_directly_or_not(self):
        self.write("penstock/execute/a.cpp", '#include "penstock/schedule/schedule.h"\n')
        self.write("penstock/lower/a.cpp", '#include "penstock/mesh/mesh.h"\n')
        self.expect()

    def test_a_layer_includes_nothing_else(self):
        self.write("penstock/mesh/a.cpp", '\n#include "penstock/schedule/schedule.h"\n')
        self.expect("penstock/mesh/a.cpp:2: layer mesh may not include")

    def test_what_a_layer_uses_privately_is_not_handed_on(self):
        self.write("penstock/render/a.cpp", '#include "penstock/mesh/mesh.h"\n')
        self.expect("layer render may not include penstock/mesh/mesh.h")

    def test_an_include_must_exist(self):
        self.write("penstock/mesh/a.cpp", '#include "penstock/core/gone.h"\n')
        self.expect("penstock/mesh/a.cpp:1: penstock/core/gone.h does not exist")

    def test_no_torch_above_the_line(self):
        self.write("penstock/core/a.cpp", "#include <c10/util/Exception.h>\n")
        self.write("penstock/cli/plan/a.cpp", "#include <torch/types.h>\n")
        self.write("penstock/cli/runtime/a.cpp", "#include <torch/types.h>\n")
        self.write("tests/core/a_test.cpp", '#include "ATen/ATen.h"\n')
        self.expect(
            "penstock/cli/plan/a.cpp:1:", "penstock/core/a.cpp:1:", "tests/core/a_test.cpp:1:"
        )

    def test_programs_and_tests_above_the_line_stay_there(self):
        include = '#include "penstock/comm/comm.h"\n'
        self.write("penstock/cli/plan/a.cpp", include)
        self.write("penstock/cli/runtime/a.cpp", include)
        self.write("tests/core/a_test.cpp", include)
        self.expect(
            "the plan program may not include", "tests/core/a_test.cpp:1: layer core is above"
        )

    def test_layers_are_listed_in_order(self):
        self.write(
            "CMakeLists.txt", CMAKE + "penstock_layer(a USES b)\npenstock_layer(b USES comm)\n"
        )
        self.expect(
            "CMakeLists.txt:11: layer a uses b", "CMakeLists.txt:12: layer b is above the torch"
        )

    def test_headers_open_with_what_they_are(self):
        self.write("penstock/core/a.h", "// Short.\n#pragma once\n")
        self.write("penstock/core/b.h", "#pragma once\n// Late.\n// Late.\n")
        self.write("penstock/core/c.h", "// One.\n// Two.\nint x;\n#pragma once\n")
        self.write("penstock/core/d.h", "// One.\n// Two.\n")
        self.expect(
            "a.h:2: the header opens with 1", "b.h:1: the", "c.h:3: expected", "d.h:1: #pragma"
        )

    def test_sizes(self):
        self.write("penstock/core/a.cpp", "\n" * 501)
        self.write("penstock/core/b.cpp", "\n" * 500)
        self.write("tools/c.py", "#" * 100 + "\n" + "#" * 101 + "\n")
        self.write("docs/long.md", "x" * 200 + "\n")
        self.expect("a.cpp:501: 501 lines", "tools/c.py:2: 101 columns")

    def test_lines_sentences_and_words_of_pages(self):
        wide = "word " * 19 + "`code that is not broken` word"
        self.write("docs/a.md", f"{wide}\n\n| {wide} |\n\n```\n{wide}\n```\n")
        long = "- " + ("word " * 15 + "word\n  ") * 2
        self.write("docs/b.md", long + "\nIt is short. So is it.\n")
        self.write("docs/c.md", ("word. " * 10 + "\n") * 5000)
        self.write("CHANGELOG.md", wide)
        generated = "<!-- generated: begin -->\n" + wide * 9 + "\n<!-- generated: end -->\n"
        self.write("README.md", generated)
        self.expect(
            "docs:1: 50", "docs/a.md:1: more than 100 columns", "docs/b.md:1: a sentence of more"
        )

    def test_pages_are_filled(self):
        text = "- " + "word " * 25 + "a\n  1 + [a link](x y)\n\n| a |\n".replace("x y", "x")
        filled = tidy.prose.wrapped(text.splitlines())
        self.assertEqual(
            filled,
            ["- " + "word " * 18 + "word", "  " + "word " * 6 + "a 1 + [a link](x)", "", "| a |"],
        )
        self.assertEqual(tidy.prose.wrapped(filled), filled)

    def test_a_class_is_one_thing(self):
        functions = "".join(f"  int f{i}() const {{ return g(i); }}\n" for i in range(26))
        fields = "  using F = std::function<void()>;\n  std::function<void(int)> f = {};\n"
        self.write("penstock/core/long.h", OPENING + "class Long {\n" + functions + "};\n")
        self.write("penstock/core/wide.h", OPENING + "struct Wide {\n" + fields * 26 + "};\n")
        self.expect("penstock/core/long.h:5: Long has 26 functions, at most 25")

    def test_comments_begin_with_a_noun_or_a_verb(self):
        self.write(
            "penstock/core/size.h",
            OPENING + "struct Size {  // Of a text.\n"
            "  int bytes = 0;  // By rank,\n"
            "                  // which is no opening.\n"
            "  // Which characters count.\n"
            "  int count(const char* text) {\n"
            "    // As torch does: a sentence in a body may begin so.\n"
            "    return 1;  // Without its end.\n"
            "  }\n"
            # As these may be:
            '  const char* text = "// Of course.";  // At most so many.\n'
            "  int last = 0;  // Bytes,\n"
            "                 // of which some count.\n"
            "};\n",
        )
        self.write("penstock/core/size.cpp", "// Where sizes are.\nint size() { return 0; }\n")
        self.write(
            "penstock/core/text.cpp",
            'auto text = R"(\n// Of a program.\n)";\n'
            "int f() {\n  int x = 0;\n  // With one rank nothing is left.\n  return x;\n}\n"
            "}  // namespace penstock\n",
        )
        self.write(
            "tools/a.py",
            '"""Of a tree."""\n\n# By name.\nA = {}\n'
            "\n\ndef f():\n    # Of two, one.\n    return 1\n"
            '\n\ndef g():\n    """Gives one."""\n    return 1  # And no more.\n',
        )
        self.write("tests/core/size_test.cpp", "// Of a text.\n")
        self.write("tests/core/sizes.h", "// Of a text.\n// Two.\n#pragma once\n")
        self.expect(
            *('size.cpp:1: begins with "Where"', 'size.h:5: begins with "Of"', "size.h:6:"),
            *('size.h:8: begins with "Which"', 'size.h:11: begins with "Without"'),
            *("sizes.h:1: begins", 'a.py:1: begins with "Of"', "a.py:3:", "a.py:14:"),
        )

    def test_words_that_do_not_belong(self):
        self.write("docs/a.md", "TO" + "DO later\n")
        self.write("b.sh", "cd /" + "work/main\nmktemp /tmp/a.XXXXXX\ncat $x/work/y\n")
        self.write("c.txt", "pypi" + ".org\n")
        self.expect(
            "b.sh:1: a path of one machine", "c.txt:1: names a package", "docs/a.md:1: TO" + "DO"
        )

    def test_cpp_rules(self):
        self.write("penstock/core/a.h", OPENING + "using namespace std;\n")
        self.write(
            "penstock/core/b.cpp",
            "using namespace std;\nassert (x);\n"
            'print("assert(x)");  // assert(x)\n#include <cassert>\n',
        )
        self.expect("a.h:5: a header opens", "b.cpp:2: use PENSTOCK_CHECK", "b.cpp:4: use")

    def test_links(self):
        self.write(
            "docs/a.md", "# One, two\n[a](b.md) [b](#one-two) [c](#three)\n[d](../README.md)\n"
        )
        self.write("README.md", "[x](docs/a.md#one-two) [y](docs/a.md#no) [z](https://x.y/z)\n")
        self.write(
            "b.md",
            "```\n[x](gone.md)\n```\n`[x](gone)`\n<!-- [x](gone)\n[x](gone)\n--> [y](gone)\n",
        )
        self.expect(
            "README.md:1: the link docs/a.md#no", "b.md:7:", "a.md:2: the link #three", "b.md"
        )

    def test_layers_of_a_wing_are_in_its_folder(self):
        lines = CMAKE.replace(
            "penstock_layer(render", "penstock_wing(drawings)\npenstock_layer(render"
        )
        lines = lines.replace("penstock_layer(comm", "penstock_wing(comm)\npenstock_layer(comm")
        self.write("CMakeLists.txt", lines)
        self.write("penstock/drawings/render/a.cpp", '#include "penstock/mesh/mesh.h"\n')
        self.write("penstock/render/b.cpp", "")
        self.expect(
            "penstock/drawings/render/a.cpp:1: layer render may not include penstock/mesh/mesh.h",
            "penstock/execute is no layer",
            "penstock/render is no layer",
        )

    def test_folders_mirror_something(self):
        self.write("penstock/misc/a.h", OPENING)
        self.write("tests/mish/a.cpp", "")
        self.write("tests/tools/a_test.py", "")
        self.write("tools/a.py", "")
        self.expect("penstock/misc is no layer", "tests/mish mirrors no folder")

    def test_users_include_public_headers(self):
        include = "#include <penstock/core/core.h>\n#include <penstock/mesh/mesh.h>\n"
        self.write("tests/consumer/main.cpp", include)
        self.write("include/penstock/core/core.h", OPENING)
        rows = "| `penstock/core/core.h` | a |\n| `penstock/core/a.h` | b |\n"
        self.write("docs/headers.md", rows)
        self.expect(
            "docs/headers.md:2: there is no penstock/core/a.h",
            "tests/consumer/main.cpp:2: penstock/mesh/mesh.h is not public (docs/headers.md)",
        )

    def test_every_test_is_compiled(self):
        self.write("tests/core/a_test.cpp", "")
        self.write("tests/comm/a_test.cpp", "")
        self.write("tests/mesh/a_test.cpp", "")
        self.write("tests/core/inner/a_test.cpp", "")
        self.expect(
            "tests/core/inner/a_test.cpp:1: no FOLDERS", "tests/mesh/a_test.cpp:1: no FOLDERS"
        )


if __name__ == "__main__":
    unittest.main()
