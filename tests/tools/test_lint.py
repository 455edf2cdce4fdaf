#!/usr/bin/env python3
"""Tests the lint checks: they report violations at the right line, and accept good code."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "lint"))

import english  # noqa: E402
import formatting  # noqa: E402
import headers  # noqa: E402
import layers  # noqa: E402
import limits  # noqa: E402
import passed  # noqa: E402
import repository  # noqa: E402
import sources  # noqa: E402
import state  # noqa: E402
import tidy  # noqa: E402
from summary import run_cases  # noqa: E402


class Checkout(unittest.TestCase):
    """A temporary folder with given files."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def findings(self, check, **files):
        for name, content in files.items():
            self.write(name, content)
        options = types.SimpleNamespace(build="build/cpu", all=True, tidy_seconds=60)
        return check(self.root, sources.repository_files(self.root), options)

    def found(self, check, name, content):
        return [(finding.line, finding.what) for finding in self.findings(check, **{name: content})
                if finding.path == name]


def english_example():
    table = json.loads((ROOT / "tools" / "lint" / "english_patterns.json").read_text())
    return next(row["example"] for row in table if not row.get("at")) + "\n"


class English(Checkout):
    TABLE = json.loads((ROOT / "tools" / "lint" / "english_patterns.json").read_text())

    def lines(self, name, content):
        return [line for line, _ in self.found(english.check, name, content)]

    def test_every_pattern_finds_its_example_and_prints_its_advice(self):
        self.assertGreater(len(self.TABLE), 40)
        for row in self.TABLE:
            code = row.get("at") == "code"
            content = f"int a;\n{row['example']}\n" if code else f"int a;\n// {row['example']}\nint b;\n"
            with self.subTest(row["example"]):
                found = self.found(english.check, "tessera/base/a.h", content)
                self.assertIn(2, [line for line, _ in found])
                self.assertTrue(any(row["instead"] in what for _, what in found), found)

    def test_comments_documents_messages_and_scripts_are_checked(self):
        bad = "A rank that has work goes on with it."
        for name, content in (("a.cpp", f"int a; // {bad}\n"), ("a.cu", f"/* {bad} */\n"), ("a.h", f'say("{bad}");\n'),
                              ("a.h", 'say(R"(' + bad + ')");\n'), ("a.md", bad + "\n"), ("a.py", f"# {bad}\n"),
                              ("a.py", f'"""{bad}"""\n'), ("a.py", f'say(f"{{x}} {bad}")\n'), ("a.sh", f"true # {bad}\n"),
                              ("CMakeLists.txt", f"# {bad}\n")):
            with self.subTest(content):
                self.assertEqual([1], self.lines(name, content))
            (self.root / name).unlink()

    def test_a_phrase_may_break_across_lines(self):
        self.assertEqual([2], self.lines("a.h", "// A transfer\n// that is under\n// way ends.\n"))
        self.assertEqual([1], self.lines("b.h", 'say("it is under "\n    "way");\n'))
        self.assertEqual([1], self.lines("c.md", "A transfer that is under\nway ends.\n"))
        self.assertEqual([], self.lines("d.h", "int a;  // it is under\nint b;  // way below\n"))

    def test_some_patterns_match_only_at_the_start_of_a_sentence(self):
        self.assertEqual([2], self.lines("a.h", "// The sum of all ranks.\n// Ends. Of these the first counts.\n"))
        self.assertEqual([], self.lines("b.h", "// Stores the sum. The rest of it stays.\n"))
        self.assertEqual([2], self.lines("c.h", "int a;  // a sum\n// Of these the first counts.\n"))  # not one comment
        self.assertEqual([], self.lines("d.h", "int a;  // a sum\n        // Of these, continued.\n"))

    def test_code_names_and_quoted_text_are_not_checked(self):
        self.assertEqual([], self.lines("a.md", "Text.\n\n    what goes on here\n\n```\nwhoever goes on\n```\nThe value `none of` is kept.\n"))
        self.assertEqual([], self.lines("b.cpp", "int whoever = whatever;\n"))
        self.assertEqual([1], self.lines("c.cpp", "struct LastWords {};\n"))
        self.assertEqual([], self.lines("d.json", '{"a": "whoever"}\n'))

    def test_messages_of_the_operating_system_may_be_quoted_in_string_literals(self):
        text = "No such file or directory"
        self.assertEqual([], self.lines("a.cpp", f'expect("/absent/f: {text}");\n'))
        self.assertEqual([], self.lines("b.py", f'expect("{text}")\n'))
        self.assertEqual([1], self.lines("c.cpp", f"// {text}\n"))
        self.assertEqual([1], self.lines("d.cpp", 'expect("There is no such file or directory");\n'))
        self.assertEqual([1], self.lines("e.cpp", 'expect("No such file");\n'))


class Layers(Checkout):
    def refused(self, name, include, line=1):
        found = self.found(layers.check, name, "\n" * (line - 1) + f"#include {include}\n")
        self.assertEqual([where for where, _ in found], [line], (name, include))
        (self.root / name).unlink()

    def accepted(self, name, include):
        self.assertEqual(self.found(layers.check, name, f"#include {include}\n"), [], (name, include))
        (self.root / name).unlink()

    def test_a_layer_includes_only_the_layers_of_its_row(self):
        self.refused("tessera/base/a.h", '"tessera/layout/box.h"', line=7)
        self.refused("tessera/layout/a.cpp", '"tessera/mesh/mesh.h"')
        self.refused("tessera/comm/a.cpp", '"tessera/schedule/events.h"')
        self.refused("tessera/ops/a.cpp", '"tessera/mesh/mesh.h"')
        self.refused("tests/layout/a.cpp", '"tessera/schedule/events.h"')
        self.refused("tessera/shard/a.cpp", '"../ops/gemm.h"')
        self.refused("tessera/unknown/a.cpp", '"tessera/base/error.h"')
        self.accepted("tessera/comm/a.cpp", '"tessera/layout/box.h"')
        self.accepted("tessera/nn/a.cpp", '"tessera/runtime/runtime.h"')
        self.accepted("apps/a.cpp", '"tessera/run/loop.h"')

    def test_json_is_parsed_in_one_file(self):
        for call in ("nlohmann::json::parse(text)", "ordered_json::accept (text)", "json::from_cbor(bytes)"):
            self.assertEqual([line for line, _ in self.found(layers.check, "tessera/run/a.cpp", f"\nauto x = {call};\n")], [2], call)
        for name in ("tessera/base/json_file.cpp", "tests/run/a.cpp"):
            self.assertEqual(self.found(layers.check, name, "auto x = json::parse(text);\n"), [], name)

    def test_two_headers_with_one_stem_are_found(self):
        two = self.findings(layers.check, **{"tessera/base/plan.h": "", "tessera/layout/plan.h": ""})
        self.assertEqual([finding.path for finding in two], ["tessera/base/plan.h"])
        (self.root / "tessera/layout/plan.h").unlink()
        fine = {"tessera/ops/gemm/gemm.h": "", "tessera/nn/gemm.h": "", "tessera/comm/world.h": "", "tessera/comm/mpi/world.h": ""}
        self.assertEqual(self.findings(layers.check, **fine), [])

    def test_a_cycle_of_three_files_is_found(self):
        def include(name):
            return f'#include "tessera/base/{name}.h"\n'

        self.write("tessera/base/a.h", "")
        self.write("tessera/base/b.h", include("a"))
        self.assertEqual(self.findings(layers.check, **{"tessera/base/a.cpp": include("a") + include("b")}), [])
        self.write("tessera/base/b.h", include("c"))
        found = self.findings(layers.check, **{"tessera/base/c.h": include("a")})
        self.assertEqual([(finding.path, finding.what) for finding in found],
                         [("tessera/base/a.cpp", "a cycle of includes: tessera/base/a, tessera/base/b, tessera/base/c")])

    def test_third_party_headers_stay_in_their_folders(self):
        self.refused("tessera/shard/a.h", "<ATen/core/Tensor.h>")
        self.refused("tessera/comm/a.h", "<c10/util/BFloat16.h>")
        self.refused("tessera/nn/a.cpp", "<torch/torch.h>")
        self.refused("tessera/ops/a.cpp", "<torch/csrc/autograd/custom_function.h>")
        self.refused("tessera/train/a.cpp", "<torch/csrc/distributed/c10d/TCPStore.hpp>")
        self.refused("tessera/train/a.cpp", "<mpi.h>")
        self.refused("tessera/comm/mpi.cpp", "<mpi.h>")
        self.refused("tessera/comm/mpi/a.cpp", "<nccl.h>")
        self.refused("tessera/nn/a.cpp", "<cublasLt.h>")
        self.refused("tessera/ops/a.cu", "<ATen/core/Tensor.h>")
        self.accepted("tessera/comm/mpi/a.cpp", "<mpi.h>")
        self.accepted("tessera/comm/nccl/a.h", "<nccl.h>")
        self.accepted("tessera/rendezvous/store/a.cpp", "<torch/csrc/distributed/c10d/TCPStore.hpp>")
        self.accepted("tessera/ops/a.cpp", "<ATen/ops/mm_ops.h>")
        self.accepted("tessera/nn/a.cpp", "<torch/csrc/autograd/custom_function.h>")


def function_of(lines, header="int f(int a) {"):
    return header + "\n" + "  a += 1;\n" * (lines - 2) + "}\n"


class Limits(Checkout):
    def test_a_file_of_501_lines_is_too_long(self):
        self.assertEqual(self.found(limits.check, "a.h", "// x\n" * 500), [])
        self.assertEqual(self.found(limits.check, "b.h", "// x\n" * 501)[0][0], 501)

    def test_a_function_of_61_lines_is_too_long_in_every_form(self):
        headers = ["int f(int a) {", "Foo::Foo(int a) : a_{a}, b_(2) {", "auto g() -> std::vector<int> {",
                   "TEST_P(Suite, Case) {", "template <typename T>\nvoid h(T a) noexcept {",
                   "bool operator==(const A& a, const A& b) {", "static void k(std::function<void(int)> f = {}) {"]
        for number, header in enumerate(headers):
            extra = header.count("\n")
            self.assertEqual(self.found(limits.check, f"ok{number}.cpp", function_of(60 - extra, header)), [], header)
            (self.root / f"ok{number}.cpp").unlink()
            long = "namespace x {\n" + function_of(61 - extra, header) + "}\n"
            found = self.found(limits.check, f"long{number}.cpp", long)
            self.assertEqual([line for line, _ in found], [2], header)
            self.assertIn("61 lines, limit 60", found[0][1])
            (self.root / f"long{number}.cpp").unlink()

    def test_a_method_inside_a_class_counts_and_the_class_does_not(self):
        body = "class A final : public B {\n public:\n" + function_of(61, "void m(int a) const override {") + "};\n"
        self.assertEqual([line for line, _ in self.found(limits.check, "a.h", body)], [3])
        members = "struct A {\n" + "  int a{0};\n" * 80 + "};\n"
        self.assertEqual(self.found(limits.check, "b.h", members), [])

    def test_kernels_tables_and_braces_in_text_are_not_functions(self):
        self.assertEqual(self.found(limits.check, "a.cu", function_of(90, "__global__ void k(int* a) {")), [])
        self.assertEqual(self.found(limits.check, "b.cpp", "const int kTable[] = {\n" + "  1,\n" * 80 + "};\n"), [])
        text = 'void f() { g("}{"); /* } */ }\n// {\nchar c = \'{\';\nint n = 1\'000;\n' + function_of(61)
        self.assertEqual([line for line, _ in self.found(limits.check, "c.cpp", text)], [5])
        raw = 'auto s = R"(\n{{{\n)";\n' + function_of(61)
        self.assertEqual([line for line, _ in self.found(limits.check, "d.cpp", raw)], [4])

    def test_python_and_shell_functions_count(self):
        self.assertEqual(self.found(limits.check, "a.py", "def f():\n" + "    x = 1\n" * 60)[0][0], 1)
        self.assertEqual(self.found(limits.check, "a.py", "def f():\n" + "    x = 1\n" * 59), [])
        self.assertEqual(self.found(limits.check, "b.sh", "\nf() {\n" + "  x=1\n" * 59 + "}\n")[0][0], 2)

    def test_a_folder_with_too_many_source_files_is_found(self):
        for folder, limit in (("tessera/a", 25), ("tests/a", 40)):
            files = {f"{folder}/{number}.h": "" for number in range(limit)}
            files |= {f"{folder}/README.md": "", f"{folder}/b/1.cpp": ""}
            self.assertEqual(self.findings(limits.check, **files), [])
            found = self.findings(limits.check, **{f"{folder}/{limit}.cpp": ""})
            self.assertEqual([(finding.path, finding.what) for finding in found],
                             [(folder, f"the folder has {limit + 1} source files, limit {limit}")])
            (self.root / folder / f"{limit}.cpp").unlink()


class Repository(Checkout):
    def test_large_generated_and_machine_bound_files_are_found(self):
        self.write("fine.txt", "/usr/share/x and $HOME/home/x\n")
        self.write("large.txt", b"x" * ((1 << 20) + 1))
        self.write("tokens.bin", b"1")
        self.write("doc.md", "one\nsee /ho" + "me/me/x\n")
        found = {(finding.path, finding.line) for finding in self.findings(repository.check)}
        self.assertEqual(found, {("large.txt", 1), ("tokens.bin", 1), ("doc.md", 2)})

    def test_scripts_must_be_executable(self):
        script = "#!/usr/bin/env python3\n"
        self.assertEqual([line for line, _ in self.found(repository.check, "test_it.py", script)], [1])
        (self.root / "test_it.py").chmod(0o755)
        self.assertEqual(self.found(repository.check, "test_it.py", script), [])


class State(Checkout):
    SOURCE = """
    #include <array>
    #include <map>
    #include <string>
    #include <string_view>
    namespace tessera {
    int counter = 3;
    thread_local int depth;
    constexpr int kFine = 4;
    extern const char* const kNames[2] = {"a", "b"};
    const std::map<int, std::string>& table() { static const std::map<int, std::string> t = {{1, "x"}}; return t; }
    struct Word { int value; std::string_view name; };
    constexpr std::array kWords{Word{1, "a"}, Word{2, "b"}};
    std::array words{Word{1, "a"}, Word{2, "b"}};
    int kCount = 1;
    std::string_view word(int i) { return i > kCount ? kWords[i].name : words[i].name; }
    int next() { static int calls; return ++calls + depth; }
    inline int shared = 0;
    int* use() { return &shared; }
    }
    """

    def build(self, source):
        folder = self.root / "build/cpu/tessera/base"
        folder.mkdir(parents=True)
        (folder / "a.cpp").write_text(source)
        subprocess.run(["g++", "-std=c++20", "-O1", "-c", "a.cpp", "-o", "a.o"], cwd=folder, check=True)
        subprocess.run(["ar", "rc", "libtessera_base.a", "a.o"], cwd=folder, check=True)

    def test_every_kind_of_mutable_object_is_found_and_constants_are_not(self):
        self.build(self.SOURCE)
        self.write(state.ALLOWED, "^tessera::counter$  # a reason\n")
        text = "\n".join(finding.what for finding in self.findings(state.check))
        for name in ("tessera::depth", "tessera::table", "tessera::next()::calls", "tessera::shared", "tessera::words",
                     "tessera::kCount"):
            self.assertIn(name, text)
        for name in ("kFine", "kNames", "kWords", "counter"):
            self.assertNotIn(name, text)

    def test_a_line_of_the_list_needs_a_reason(self):
        self.build("int f() { return 1; }")
        self.write(state.ALLOWED, "# comment\n^x$\n")
        self.assertEqual([finding.line for finding in self.findings(state.check)], [2])

    def test_without_a_build_it_is_skipped_not_passed(self):
        with self.assertRaises(sources.Skip):
            self.findings(state.check)


class PassedFiles(Checkout):
    """A check reads a file again only if the file or the check has changed."""

    def changed(self, *inputs, findings=()):
        found = passed.Passed(self.root, "check", *inputs)
        files = found.changed([pathlib.PurePosixPath(name) for name in ("a", "b")])
        found.store([sources.Finding(name, 1, "") for name in findings])
        return [str(path) for path in files]

    def test_only_files_that_passed_are_left_out(self):
        self.write("a", "one")
        self.write("b", "two")
        self.assertEqual(["a", "b"], self.changed(b"table", findings=["b"]))
        self.assertEqual(["b"], self.changed(b"table"))
        self.assertEqual([], self.changed(b"table"))
        self.write("a", "three")
        self.assertEqual(["a"], self.changed(b"table", findings=["a"]))
        self.write("a", "one")
        self.assertEqual(["a"], self.changed(b"table"))

    def test_another_check_reads_every_file(self):
        self.write("a", "one")
        self.write("b", "two")
        self.changed(b"table", b"tool")
        self.assertEqual(["a", "b"], self.changed(b"tablet", b"ool"))
        for damaged in ("", "{", "[]", '{"key": 1}'):
            self.write(".cache/lint/check.json", damaged)
            self.assertEqual(["a", "b"], self.changed(b"table", b"tool"), damaged)
        self.assertEqual([], self.changed(b"table", b"tool"))

    def test_a_finding_is_printed_again(self):
        for _ in range(2):
            self.assertNotEqual([], self.found(english.check, "a.md", english_example()))


class Format(Checkout):
    def test_a_badly_formatted_line_is_found(self):
        for name in (formatting.REQUIREMENTS, ".clang-format"):
            self.write(name, (ROOT / name).read_text())
        try:
            found = self.found(formatting.check, "a.cpp", "int a = 1;\nint   b=2;\n")
        except sources.Skip as reason:
            self.skipTest(str(reason))
        self.assertEqual([line for line, _ in found], [2])
        self.assertEqual(self.found(formatting.check, "a.cpp", "int a = 1;\nint b = 2;\n"), [])


class Tidy(Checkout):
    def test_findings_of_our_files_are_kept_and_parser_errors_are_not(self):
        output = ("/r/tessera/a.cpp:3:5: warning: bad name [readability-identifier-naming]\n"
                  "/r/tessera/a.cpp:4:5: error: no member [clang-diagnostic-error]\n"
                  "/usr/include/x.h:5:5: warning: other [bugprone-x]\n")
        self.assertEqual([(f.path, f.line) for f in tidy.parse(output, pathlib.Path("/r"))], [("tessera/a.cpp", 3)])
        self.assertEqual(tidy.parser_error(output), "no member")
        self.assertIsNone(tidy.parser_error(output.replace("diagnostic-error", "diagnostic-warning")))

    def test_precompiled_headers_are_left_out(self):
        command = "c++ -O1 -Winvalid-pch -include /r/build/cmake_pch.hxx -include own.h -o a.o -c /r/a.cpp"
        self.assertEqual(tidy.one_file_each([{"file": "/r/a.cpp", "command": command}]),
                         [{"file": "/r/a.cpp", "command": "c++ -O1 -include own.h -o a.o -c /r/a.cpp"}])

    @unittest.skipUnless(shutil.which("clang-tidy"), "no clang-tidy here")
    def test_a_file_that_clang_cannot_read_does_not_pass(self):
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)
        self.write(".clang-tidy", (ROOT / ".clang-tidy").read_text())
        self.write("build/cpu/cmake_pch.hxx", "")
        self.write("build/cpu/cmake_pch.hxx.gch", "what another compiler wrote")
        name = "tessera/a.cpp"
        command = f"c++ -Winvalid-pch -include {self.root}/build/cpu/cmake_pch.hxx -c {self.root / name}"
        entry = {"directory": str(self.root), "file": str(self.root / name), "command": command}
        self.write("build/cpu/compile_commands.json", json.dumps([entry]))
        self.assertEqual([line for line, _ in self.found(tidy.check, name, "int good = 1;\nint Bad = 2;\n")], [2])
        self.assertEqual(self.found(tidy.check, name, "int good = 1;\n"), [])
        with self.assertRaises(sources.Skip):
            self.found(tidy.check, name, '#include "nowhere.h"\n')


class Headers(Checkout):
    """Each header is compiled alone, with the flags of a source file beside it."""

    NEEDS_FLAG = "#include <vector>\nstd::vector<int> v{TWO};\n"

    def build(self, *extra):
        command = f"c++ -I{self.root} -std=c++20 -DTWO=2 -Winvalid-pch -include cmake_pch.hxx -o a.o -c"
        entries = [("tessera/base/a.cpp", f"{command} {self.root}/tessera/base/a.cpp"), *extra]
        self.write("tessera/base/a.cpp", "")
        self.write(".gitignore", "build\n")
        database = [{"directory": str(self.root), "file": f"{self.root}/{file}", "command": command}
                    for file, command in entries]
        self.write("build/cpu/compile_commands.json", json.dumps(database))

    def git(self, *command):
        subprocess.run(["git", "-C", str(self.root), "-c", "user.name=a", "-c", "user.email=a", *command], check=True)

    def commit(self):
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-qm", "a")

    def test_a_header_that_does_not_include_what_it_uses_is_found(self):
        self.build()
        self.write("tessera/base/good.h", self.NEEDS_FLAG)
        self.assertEqual(self.findings(headers.check), [])
        found = self.found(headers.check, "tessera/base/bad.h", "#include <string>\nstd::vector<int> v;\n")
        self.assertEqual([line for line, _ in found], [2])
        self.write("tessera/base/outer.h", '#include "tessera/base/bad.h"\n')
        found = {finding.path: finding.what for finding in self.findings(headers.check)}
        self.assertEqual(set(found), {"tessera/base/bad.h", "tessera/base/outer.h"})
        self.assertIn("tessera/base/bad.h:2: ", found["tessera/base/outer.h"])

    def test_cuda_headers_are_left_out_without_cuda(self):
        self.build()
        self.write("tessera/base/kernel.cuh", "not C++\n")
        self.write("tessera/base/stream.h", "#include <cuda_of_no_machine.h>\n")
        self.write("tessera/base/uses.h", '#include "tessera/base/stream.h"\n')
        self.write("tessera/base/good.h", "")
        self.assertEqual(self.findings(headers.check), [])

    def test_a_cuda_header_is_compiled_by_the_compiler_of_cuda_files(self):
        self.build(("tessera/base/k.cu", "false -x cu -c k.cu -o k.o"))
        self.assertEqual(len(self.found(headers.check, "tessera/base/kernel.cuh", "")), 1)

    def test_without_all_only_changed_headers_are_compiled(self):
        self.build()
        self.write("tessera/base/old.h", "old;\n")
        self.commit()
        options = types.SimpleNamespace(build="build/cpu", all=False)

        def paths():
            return [finding.path for finding in headers.check(self.root, sources.repository_files(self.root), options)]

        self.assertEqual(paths(), ["tessera/base/old.h"])
        self.write("tessera/base/new.h", "new;\n")
        self.assertEqual(paths(), ["tessera/base/new.h"])
        self.commit()
        self.assertEqual(paths(), ["tessera/base/new.h"])
        self.git("checkout", "-qb", "side", "HEAD~1")
        self.write("tessera/base/side.h", "side;\n")
        self.commit()
        self.git("checkout", "-q", "-")
        self.git("merge", "-q", "-m", "a", "side")
        self.assertEqual(paths(), ["tessera/base/side.h"])

    def test_without_compile_commands_it_is_skipped(self):
        with self.assertRaises(sources.Skip):
            self.findings(headers.check)


class ThisRepository(unittest.TestCase):
    def test_an_unknown_check_is_an_error(self):
        command = [sys.executable, str(ROOT / "tools/lint/lint.py"), "nonsense"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("nonsense", result.stderr)


if __name__ == "__main__":
    run_cases()
