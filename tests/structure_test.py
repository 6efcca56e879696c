#!/usr/bin/env python3
"""The tree keeps its shape, and the check that says so finds a planted violation of each kind."""
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_structure  # noqa: E402

PLANTED = {
    "check_layers": ("src/kv/planted.h", '#pragma once\n#include "engine/engine.h"\n'),
    "check_backends_apart": ("src/attention/backends/cpu/planted.h",
                             '#pragma once\n#include "attention/backends/reference/reference.h"\n'),
    "check_vendor": ("src/model/planted.h", "#pragma once\n#ifdef __CUDA_ARCH__\n#endif\n"),
    "check_sizes": ("src/base/planted.h", "#pragma once\n" + "// line\n" * 501),
    "check_banned": ("src/base/planted.h", "#pragma once\nusing namespace std;\n"),
    "check_skips": ("src/base/planted_test.cc", "TEST(Planted, Skips) { GTEST_SKIP(); }\n"),
    "check_machine_paths": ("docs/PLANTED.md", "see /home/somebody/thing\n"),
    "check_doc_paths": ("docs/PLANTED.md", "see `src/nowhere/at_all.h`\n"),
    "check_empty_folders": ("src/base/planted/", None),
}


class Structure(unittest.TestCase):
    def test_tree_is_clean(self):
        self.assertEqual(check_structure.violations(ROOT), [])

    def test_planted_violations_are_found(self):
        self.assertEqual(set(PLANTED), {check.__name__ for check in check_structure.CHECKS})
        for check, (name, text) in PLANTED.items():
            with self.subTest(check), tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(folder)
                (root / "docs").mkdir()
                shutil.copytree(ROOT / "src", root / "src")
                before = check_structure.violations(root)
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if text is None:
                    target.mkdir()
                else:
                    target.write_text(text)
                new = set(check_structure.violations(root)) - set(before)
                self.assertTrue(any(line.startswith(check + ":") for line in new), new)

    def test_only_device_tests_may_skip(self):
        cmake = (ROOT / "cmake/module.cmake").read_text()
        cases = [("src/kv/a_test.cc", "TEST(A, DISABLED_B) {}", 1), ("tests/a_test.py", "@unittest.skipIf(True, '')", 1),
                 ("tests/a_test.py", "self.skipTest('')", 1), ("tests/CMakeLists.txt", "SKIP_RETURN_CODE 77", 1),
                 ("CMakeLists.txt", "set_tests_properties(a PROPERTIES DISABLED ON)", 1),
                 ("cmake/module.cmake", cmake + "set_tests_properties(a PROPERTIES SKIP_RETURN_CODE 77)", 1),
                 ("cmake/module.cmake", cmake, 0), ("src/kv/a_device_test.cc", "GTEST_SKIP();", 0),
                 ("src/kv/a.cc", "skipped", 0)]
        for name, text, found in cases:
            with self.subTest(name, text=text[-40:]), tempfile.TemporaryDirectory() as folder:
                target = pathlib.Path(folder) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
                self.assertEqual(len(list(check_structure.check_skips(pathlib.Path(folder)))), found)


if __name__ == "__main__":
    unittest.main()
