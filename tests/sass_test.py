#!/usr/bin/env python3
"""tools/check_sass.py finds what it is there to find: planted kernels without tensor cores, with local memory, and
rules that meet no kernel."""
import collections
import contextlib
import io
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import check_sass  # noqa: E402


def sound():
    """One kernel for every rule, made as the rule wants it."""
    names = ["_Z13attend_narrowI4Bf16ELb1EEv", "_Z11attend_wideILi128EEv", "_Z13attend_latentv", "_Z10join_partsv",
             "_Z11ring_kernelI8GemvKindE2EEv", "_Z14experts_kernelv", "_Z15rms_norm_kernelv",
             "_Z17round_rows_kernelILN5DTypeE3EEv", "_Z11rope_kernelv"]
    kernels = {}
    for name in names:
        kernels[name] = collections.Counter(instructions=10)
        for rule in check_sass.RULES:
            for pattern in rule[2]:
                kernels[name][pattern] = 1
    return kernels


def violations(kernels):
    with contextlib.redirect_stdout(io.StringIO()):
        return check_sass.check(kernels)


class CheckSass(unittest.TestCase):
    def test_sound_kernels_pass(self):
        self.assertEqual(violations(sound()), [])

    def test_a_kernel_without_tensor_cores_is_found(self):
        kernels = sound()
        kernels["_Z11attend_wideILi128EEv"][check_sass.MMA] = 0
        self.assertEqual(len(violations(kernels)), 1)
        self.assertIn("_Z11attend_wideILi128EEv", violations(kernels)[0])

    def test_a_spill_is_found(self):
        kernels = sound()
        kernels["_Z11ring_kernelI8GemvKindE2EEv"]["local"] = 3
        self.assertIn("local memory in 3", violations(kernels)[0])

    def test_a_rule_without_kernels_is_found(self):
        kernels = sound()
        del kernels["_Z11rope_kernelv"]
        self.assertIn("no kernel is named", violations(kernels)[0])

    def test_lines_of_a_dump_are_understood(self):
        self.assertEqual(check_sass.FUNCTION.match("\t\tFunction : _Z6attendv").group(1), "_Z6attendv")
        line = "        /*0a10*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;   /* 0x0000 */"
        text = check_sass.INSTRUCTION.match(line).group(1)
        self.assertRegex(text, check_sass.MMA)
        self.assertTrue(check_sass.LOCAL.search("@P0 LDL.64 R2, [R1+0x8]"))
        self.assertFalse(check_sass.LOCAL.search("LDG.E.128 R4, desc[UR4][R2.64]"))
        self.assertRegex("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", check_sass.WIDE_LOAD)


if __name__ == "__main__":
    unittest.main()
