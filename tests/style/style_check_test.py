#!/usr/bin/env python3
"""Tests of the style rules: each fires on what it forbids and is silent on what looks like it."""

import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import rules  # noqa: E402
import style_check  # noqa: E402

HEADER = "#pragma once\n// What this is.\n\n"


def findings(text, path="src/base/thing.cc", text_only=False):
    return rules.check(rules.File(path, text), text_only)


def names(text, path="src/base/thing.cc", text_only=False):
    return [finding.rule for finding in findings(text, path, text_only)]


def functions(text):
    return [(f.name, f.first_line, f.last_line)
            for f in rules.File("src/base/thing.cc", text).blocks.functions]


class FunctionLength(unittest.TestCase):
    LONG = "  Step();\n" * 69

    def test_fires_from_71_lines_on(self):
        self.assertEqual(names("void Long() {\n" + self.LONG + "}\n"), ["function-length"])
        self.assertEqual(names("void Fits() {\n" + self.LONG[10:] + "}\n"), [])

    def test_names_function_and_line(self):
        finding = findings("\nint Thing::Long(int a) const {\n" + self.LONG + "}\n")[0]
        self.assertEqual(finding.line, 2)
        self.assertIn("Thing::Long has 71 lines", finding.message)

    def test_counts_methods_tests_and_operators(self):
        for head in ("TEST(ThingTest, Long)", "bool operator==(const A& a)",
                     "template <typename T>\nauto Long(T t) -> int", "Thing::~Thing()",
                     "static void Long(\n    int a)", "const auto f = [](int a)"):
            self.assertEqual(names(f"{head} {{\n{self.LONG}}};\n"), ["function-length"], head)
        self.assertEqual(names(f"class A {{\n void B() override {{\n{self.LONG} }}\n}};\n"),
                         ["function-length"])

    def test_classes_namespaces_and_tables_may_be_long(self):
        self.assertEqual(names("namespace a {\n" + "void F();\n" * 90 + "}\n"), [])
        self.assertEqual(names("class A final : public B {\n" + " int f();\n" * 90 + "};\n"), [])
        self.assertEqual(names("constexpr int kTable[] = {\n" + "  1,\n" * 90 + "};\n"), [])
        self.assertEqual(names("enum class E : int {\n" + "  kA,\n" * 90 + "};\n"), [])

    def test_braces_in_literals_and_comments_do_not_count(self):
        text = ('void A() {\n  Print("{{{", \'{\');  // {\n  /* { */\n  R"x(\n{{)x";\n'
                "  int n = 1'000'000;\n}\nvoid B() {}\n")
        self.assertEqual([f[0] for f in functions(text)], ["A", "B"])

    def test_member_initialisers_are_not_bodies(self):
        text = "Thing::Thing(int a)\n    : a_{a},\n      b_{1, 2} {\n  Go();\n}\nvoid Next() {}\n"
        self.assertEqual(functions(text), [("Thing::Thing", 1, 5), ("Next", 6, 6)])

    def test_a_macro_body_is_not_a_function(self):
        text = "#define K3_LONG(a) \\\n  do { \\\n" + "    Step(); \\\n" * 80 + "  } while (0)\nint F() {}\n"
        self.assertEqual([f[0] for f in functions(text)], ["F"])


class Sizes(unittest.TestCase):
    def test_file_lengths(self):
        line = "// A line.\n"
        self.assertEqual(names(line * 501), ["file-length"])
        self.assertEqual(names(line * 500), [])
        self.assertEqual(names(line * 800, "src/base/thing_test.cc"), [])
        self.assertEqual(names(line * 801, "tests/golden/thing.cc"), ["file-length"])
        self.assertEqual(names(HEADER + line * 248, "src/base/thing.h"), ["file-length"])
        self.assertEqual(names(HEADER + line * 247, "src/base/thing.h"), [])
        self.assertEqual(names(HEADER + line * 400, "src/kernels/thing-inl.h"), [])

    def test_columns(self):
        self.assertEqual(names("int F(" + "a" * 94 + ");\n"), ["line-length"])
        self.assertEqual(names("// " + "ü" * 40 + " " + "é" * 40 + "\n"), [])
        self.assertEqual(names("// see\n// https://" + "a" * 120 + "\n"), [])
        self.assertEqual(names('#include "base/' + "a" * 120 + '.h"\n'), [])
        self.assertEqual(names('void F() { Use(R"(' + "x" * 120 + ')"); }\n'), [])


class Headers(unittest.TestCase):
    def test_opening(self):
        self.assertEqual(names(HEADER + "int F();\n", "src/base/a.h"), [])
        self.assertEqual(names("// What.\nint F();\n", "src/base/a.h"), ["pragma-once"])
        self.assertEqual(names("#pragma once\n\nint F();\n", "src/base/a.h"), ["header-comment"])
        self.assertEqual(names("#pragma once\n/* What. */\n", "src/base/a.h"), [])

    def test_per_target_headers_have_highways_guard(self):
        text = ("// What.\n#if defined(K3_A_INL_H_) == defined(HWY_TARGET_TOGGLE)\n"
                "#ifdef K3_A_INL_H_\n#undef K3_A_INL_H_\n#else\n#define K3_A_INL_H_\n#endif\n#endif\n")
        self.assertEqual(names(text, "src/kernels/a-inl.h"), [])

    def test_using_namespace(self):
        text = "using namespace std;\n"
        self.assertEqual(names(HEADER + text, "src/base/a.h"), ["using-namespace"])
        self.assertEqual(names(text), [])
        self.assertEqual(names(HEADER + "using std::swap;\nnamespace hn = hwy;\n", "src/base/a.h"), [])

    def test_file_names(self):
        self.assertEqual(names("", "src/base/ThingOne.cc"), ["file-name"])
        self.assertEqual(names("", "src/base/thing-one.cc"), ["file-name"])
        self.assertEqual(names("", "tests/e2e/run-all.py"), ["file-name"])
        for good in ("src/base/top_k.cc", "src/base/utf8_test.cc", "tests/a/CMakeLists.txt"):
            self.assertEqual(names("", good), [], good)
        self.assertEqual(names("// Why.\n#pragma once\n", "src/kernels/simd-inl.h"),
                         ["pragma-once"])


class Words(unittest.TestCase):
    def test_todo(self):
        self.assertEqual(names("// TODO: later\n"), ["todo"])
        self.assertEqual(names("// TODO(ann):\n"), ["todo"])
        self.assertEqual(names("int a();  // FIXME(ann): this\n"), ["todo"])
        self.assertEqual(names("// TODO(ann): drop when shards carry sums\n"), [])
        self.assertEqual(names('auto F() { return "TODO"; }\n'), [])

    def test_endl(self):
        self.assertEqual(names("void F() { out << std::endl; }\n"), ["endl"])
        self.assertEqual(names("// std::endl flushes\n"), [])

    def test_shared_ptr(self):
        self.assertEqual(names("std::shared_ptr<A> F();\n"), ["shared-ptr"])
        self.assertEqual(names("// Two sessions may outlive the page.\nstd::shared_ptr<A> F();\n"), [])
        self.assertEqual(names("std::shared_ptr<A> F();  // readers outlive it\n"), [])
        self.assertEqual(names("std::shared_lock lock(mutex);\n"), [])


class Includes(unittest.TestCase):
    def refused(self, header, path, bracket="<>"):
        text = f"#include {bracket[0]}{header}{bracket[1]}\n"
        if path.endswith(".h"):
            text = HEADER + text
        return names(text, path) == ["include"]

    def test_a_library_has_one_room(self):
        cases = [("hwy/highway.h", "src/kernels/a.cc", "src/ops/a.cc"),
                 ("dnnl.hpp", "src/kernels/gemm/dnnl.cc", "src/ops/a.cc"),
                 ("oneapi/dnnl/dnnl.hpp", "src/kernels/gemm/dnnl.cc", "src/train/a.cc"),
                 ("unicode/uchar.h", "src/text/a.cc", "src/config/a.cc"),
                 ("CLI/CLI.hpp", "apps/k3/main.cc", "src/eval/a.cc")]
        for header, inside, outside in cases:
            self.assertFalse(self.refused(header, inside), header)
            self.assertTrue(self.refused(header, outside), header)
            self.assertTrue(self.refused(header, outside, '""'), header)

    def test_private_libraries_stay_out_of_public_headers(self):
        for header in ("nlohmann/json.hpp", "fmt/format.h", "xxhash.h"):
            self.assertFalse(self.refused(header, "src/config/a.cc"))
            self.assertFalse(self.refused(header, "src/config/a-internal.h"))
            self.assertTrue(self.refused(header, "src/config/a.h"))

    def test_test_libraries_stay_in_tests(self):
        self.assertFalse(self.refused("gtest/gtest.h", "src/base/a_test.cc"))
        self.assertFalse(self.refused("rapidcheck.h", "tests/property/a.cc"))
        self.assertTrue(self.refused("gtest/gtest.h", "src/base/a.cc"))

    def test_unknown_and_system_headers(self):
        self.assertTrue(self.refused("absl/status.h", "src/base/a.cc"))
        self.assertTrue(self.refused("zlib.h", "src/base/a.cc"))
        self.assertTrue(self.refused("immintrin.h", "src/model/a.cc"))
        for good in ("vector", "sys/mman.h", "unistd.h", "immintrin.h"):
            self.assertFalse(self.refused(good, "src/kernels/a.cc"), good)
        self.assertFalse(self.refused("base/status.h", "src/kernels/a.cc", '""'))

    def test_our_own_headers_name_their_room(self):
        self.assertTrue(self.refused("status.h", "src/base/a.cc", '""'))
        self.assertTrue(self.refused("../kernels/kernels.h", "src/base/a.cc", '""'))
        self.assertTrue(self.refused("base/../kernels/kernels.h", "tests/a.cc", '""'))
        self.assertFalse(self.refused("kernels/gemm/gemm.h", "src/kernels/a.cc", '""'))
        self.assertFalse(self.refused("cmd_run.h", "apps/k3/main.cc", '""'))


class Preprocessor(unittest.TestCase):
    def test_feature_switches(self):
        self.assertEqual(names("#ifdef K3_WITH_DNNL\n#endif\n", "src/kernels/a.cc"),
                         ["feature-switch"])
        self.assertEqual(names("#if defined(NDEBUG)\n#endif\n"), ["feature-switch"])
        self.assertEqual(names("#if defined(__x86_64__)\n#endif\n", "src/sys/a.cc"), [])
        self.assertEqual(names("#if defined(__x86_64__)\n#endif\n", "src/model/a.cc"),
                         ["feature-switch"])
        self.assertEqual(names("#if HWY_ONCE\n#endif\n", "src/kernels/a.cc"), [])

    def test_macros(self):
        self.assertEqual(names("#define MAX(a, b) ((a) > (b) ? (a) : (b))\n"), ["macro"])
        self.assertEqual(names("#define K3_TRY(a) a\n#undef HWY_TARGET_INCLUDE\n"
                               '#define HWY_TARGET_INCLUDE "a.cc"\n', "src/kernels/a.cc"), [])


class State(unittest.TestCase):
    def test_mutable_globals(self):
        for text in ("int counter = 0;", "static int counter;", "std::atomic<int> g_count{0};",
                     "const char* name = 0;", "thread_local Arena arena;", "bool flags[4];",
                     "std::map<std::string, std::vector<int>> table;", "inline int limit = 3;",
                     "namespace a {\nnamespace {\nint hidden = 1;\n}\n}"):
            self.assertEqual(names(text + "\n"), ["global-state"], text)

    def test_constants_and_declarations_are_not_state(self):
        for text in ("constexpr int kMax = 3;", "const double kPi = 3.0;", "int F(int a);",
                     "const char* const kName = 0;", "inline constexpr std::string_view kA = 0;",
                     "using A = std::vector<int>;", "class A;", "struct A {\n  int a = 0;\n};",
                     "template <typename T>\nconstexpr bool kIs = true;", "static_assert(1 < 2);",
                     "auto F() -> int;", "enum class E { kA, kB };", "HWY_EXPORT(Dot);",
                     "[[nodiscard]] Status F(std::span<const int> a, int b = 3);",
                     "constexpr std::array<int, 3> kA = {1, 2, 3};", "namespace hn = hwy::a;",
                     "bool operator==(const A& a, const A& b);", "friend class B;",
                     "extern template class A<int>;", "A::A(A&&) noexcept = default;"):
            self.assertEqual(names(text + "\n", "src/kernels/a.cc"), [], text)

    def test_static_initialisers(self):
        self.assertEqual(names("const std::string kName = 0;\n"), ["static-initialiser"])
        self.assertEqual(names("const std::vector<int> kA = {1, 2};\n"), ["static-initialiser"])
        self.assertEqual(names("const std::string kName = 0;\n", "src/base/a_test.cc"), [])

    def test_local_statics(self):
        self.assertEqual(names("int F() {\n  static int n = 0;\n  return ++n;\n}\n"),
                         ["global-state"])
        self.assertEqual(names("int F() {\n  thread_local std::vector<int> a;\n}\n"),
                         ["global-state"])
        self.assertEqual(names("int F() {\n  static const int n = G();\n  static_assert(1);\n"
                               "  static constexpr int kA[] = {1};\n"
                               "  return static_cast<int>(n);\n}\n"), [])

    def test_static_members_are_declarations(self):
        self.assertEqual(names("struct A {\n  static int F();\n};\n"), [])


class Texts(unittest.TestCase):
    def test_machine_paths(self):
        for folder in ("work", "home", "root"):
            text = f"see /{folder}/me/k3 for it\n"
            self.assertEqual(names(text, "docs/a.md", text_only=True), ["machine-path"])
            self.assertEqual(names("// " + text), ["machine-path"])
        for good in ("src/work/a", "$HOME/home/x", "https://example.org/home/", "/usr/share/x"):
            self.assertEqual(names(good, "docs/a.md", text_only=True), [], good)

    def test_registry_hosts(self):
        for host in ("deb.debian" + ".org", "registry.npm" + "js.org", "pypi" + ".org"):
            text = f"https://{host}/x\n"
            self.assertEqual(names(text, "docs/a.md", text_only=True), ["registry-host"], host)
        self.assertEqual(names("https://www.debian.org\n", "docs/a.md", text_only=True), [])


class Allowance(unittest.TestCase):
    def test_needs_the_rule_and_a_reason(self):
        text = "// style-ok(macro): the C header wants this name\n#define LOUD 1\n"
        self.assertEqual(names(text), [])
        self.assertEqual(names(text.replace("(macro)", "(endl)")), ["macro"])
        self.assertEqual(names(text.replace(": the C header wants this name", ":")), ["macro"])


class Tree(unittest.TestCase):
    def run_check(self, root):
        return subprocess.run([sys.executable, os.path.join(HERE, "style_check.py"), root],
                              capture_output=True, text=True, check=False)

    def test_reports_file_and_line(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "src", "base"))
            os.makedirs(os.path.join(root, "build"))
            for path in ("src/base/a.cc", "build/b.cc"):
                with open(os.path.join(root, path), "w", encoding="utf-8") as stream:
                    stream.write("\nvoid F() { std::endl(x); }\n")
            with open(os.path.join(root, "model.bin"), "wb") as stream:
                stream.write(b"\0/" + b"root/")
            result = self.run_check(root)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "src/base/a.cc:2: std::endl flushes; write '\\n' [endl]\n"
                                        "style: 1 files, 1 findings\n")

    def test_an_empty_tree_is_a_failure(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(self.run_check(root).returncode, 1)

    def test_the_checker_passes_its_own_check(self):
        for name in sorted(os.listdir(HERE)):
            if name.endswith(".py"):
                path = os.path.join(HERE, name)
                file = rules.File("tests/style/" + name, style_check.read_text(path))
                self.assertEqual(rules.check(file), [], name)


if __name__ == "__main__":
    unittest.main()
