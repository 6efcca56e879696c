#!/usr/bin/env python3
"""The program from outside: JSON keys, exit codes, messages, and the real model.

usage: cli_test.py QUIRE_PROGRAM     one without sanitizers, which need the address space that some tests limit
"""
import json
import math
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = pathlib.Path(os.environ.get("QUIRE_GOLDEN_DIR", ROOT / "tests/data/golden"))
SMOLLM2 = ROOT / ".deps/models/SmolLM2-135M-Instruct.Q4_1.gguf"
QUIRE = "quire"


def quire(*arguments, stdin=None, env=None):
    done = subprocess.run([QUIRE, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(env or {})})
    return done.returncode, done.stdout, done.stderr


def model(name):
    return GOLDEN / "models" / name


class Terminal:
    """The program with a terminal of its own, as a person has it."""

    def __init__(self, *arguments):
        self.seen = ""
        self.raw = b""
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="C")
            os.execvp(QUIRE, [QUIRE, *map(str, arguments)])

    def type(self, keys):
        os.write(self.file, keys.encode())

    def until(self, pattern, seconds=120):
        """Waits for the pattern in what came since the last one, and returns that up to its end."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            if time.monotonic() > deadline or not self.read(1):
                raise AssertionError(f"no {pattern!r} in {self.seen!r}")
        text, self.seen = self.seen[:found.end()], self.seen[found.end():]
        return text

    def read(self, seconds):
        """False: the program has closed its side."""
        if select.select([self.file], [], [], seconds)[0]:
            try:
                self.raw += os.read(self.file, 4096)
            except OSError:
                return False
            text = self.raw.decode(errors="ignore")
            self.raw = self.raw[len(text.encode()):]
            self.seen += text
        return True

    def until_keys_are_read(self):
        """The prompt is shown a moment before the terminal gives single keys; a Ctrl-D in between is lost."""
        while termios.tcgetattr(self.file)[3] & termios.ICANON:
            time.sleep(0.01)

    def end(self):
        """The exit code, once the program has ended."""
        while self.read(120):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Json(unittest.TestCase):
    """Keys of cli.md: they may gain neighbours, never change meaning."""

    def run_json(self, *arguments, stdin=None):
        code, out, err = quire(*arguments, stdin=stdin)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_run(self):
        answer = self.run_json("run", model("llama"), "--ids", "1,2,3,4,5", "--max-tokens", 6, "--ignore-eos", "--json")
        for key in ("text", "tokens", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "ttft_s", "load_s",
                    "prefill_tok_s", "decode_tok_s", "page_size", "backends", "peak_rss_bytes"):
            self.assertIn(key, answer)
        self.assertEqual(answer["finish_reason"], "length")
        self.assertEqual((answer["prompt_tokens"], answer["completion_tokens"], len(answer["tokens"])), (5, 6, 6))
        self.assertEqual(answer["backends"]["full.decode"], "cpu")

    def test_run_prompts_come_at_their_times(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for arrival in (0.5, 0, 0.25):
                file.write(json.dumps({"ids": [1, 2, 3], "max_tokens": 4, "arrival_s": arrival}) + "\n")
            file.flush()
            code, out, err = quire("run", model("llama"), "--prompts", file.name, "--ignore-eos")
            self.assertEqual(code, 0, err)
            lines = [json.loads(line) for line in out.splitlines()]
            self.assertEqual([line["index"] for line in lines], [0, 1, 2])
            self.assertEqual(len({tuple(line["tokens"]) for line in lines}), 1)
            for line in lines:
                self.assertGreaterEqual(line["finish_s"], line["ttft_s"])
            # The same file is a trace.
            report = self.run_json("simulate", "--trace", file.name, "--json")
            self.assertEqual((report["finished"], report["output_tokens"], report["violations"]), (3, 12, []))
            file.write(json.dumps({"ids": [1], "arrival_s": -1}) + "\n")
            file.flush()
            self.assertEqual(quire("run", model("llama"), "--prompts", file.name)[0], 2)

    def test_simulate(self):
        flags = ("--synthetic", "mix:requests=300,rate=20,aborts=0.1,slow=0.1", "--seed", 4, "--json")
        report = self.run_json("simulate", *flags)
        for key in ("requests", "finished", "refused", "aborted", "steps", "prompt_tokens", "computed_tokens", "hit_tokens",
                    "hit_rate", "retractions", "pages_peak", "waiting_s", "ttft_s", "violations", "seed"):
            self.assertIn(key, report)
        self.assertEqual((report["requests"], report["violations"], report["seed"]), (300, [], 4))
        self.assertEqual(report["finished"] + report["refused"] + report["aborted"], 300)
        self.assertEqual(report, self.run_json("simulate", *flags))
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.jsonl"
            self.run_json("simulate", *flags, "--write-trace", trace)
            self.assertEqual(report, self.run_json("simulate", "--trace", trace, "--seed", 4, "--json"))
        for wrong in (("simulate",), ("simulate", "--synthetic", "chats"), ("simulate", "--synthetic", "chat", "--groups", "ful"),
                      ("simulate", "--synthetic", "chat", "--calibration", __file__)):
            self.assertEqual(quire(*wrong)[0], 2, wrong)

    def test_simulate_has_an_engines_limits(self):
        trace = ("simulate", "--synthetic", "chat:requests=3")
        for flag, over, most in (("--max-running", 1048576, 1024), ("--chunk-tokens", 65537, 65536)):
            code, _, err = quire(*trace, flag, over)
            self.assertEqual(code, 2, err)
            self.assertIn(f"use {flag} {most} or less", err)
            self.assertIn(str(over), err)
        # A context that nobody uses takes no memory; one that no machine holds is refused.
        code, _, err = quire(*trace, "--max-context", 1 << 26, "--kv-tokens", 1 << 26)
        self.assertEqual(code, 0, err)
        code, _, err = quire(*trace, "--max-running", 1024, "--max-context", 1 << 30, "--page-size", 1)
        self.assertEqual(code, 3, err)
        self.assertIn("--max-context", err)

    def test_simulate_says_what_would_do(self):
        trace = ("simulate", "--synthetic", "chat:requests=3")
        for groups in ("full,", ",full", "full,,full"):
            code, _, err = quire(*trace, "--groups", groups)
            self.assertEqual(code, 2, groups)
            self.assertIn("full, window:TOKENS and chunk:TOKENS", err)
        with tempfile.TemporaryDirectory() as folder:
            missing = pathlib.Path(folder) / "none/file"
            for flag in ("--shrink", "--write-trace"):
                for path in (missing, folder):
                    code, out, err = quire(*trace, flag, path)
                    self.assertEqual((code, out), (2, ""), err)
                    self.assertIn(flag, err)
            unused = pathlib.Path(folder) / "unused"
            self.assertEqual(quire(*trace, "--shrink", unused)[0], 0)
            self.assertFalse(unused.exists())
        code, _, err = quire("simulate", "--trace", "/dev/zero")
        self.assertEqual(code, 2, err)
        self.assertIn("/dev/zero is a device", err)
        self.assertIn("--kv-tokens N=131072 ", quire("simulate", "--help")[1])

    def test_bench_says_what_would_do(self):
        load = ("bench", "offline", model("llama"), "--prompt", 4, "--output", 2)
        code, _, err = quire(*load, "--seed", -1)
        self.assertEqual(code, 2, err)
        self.assertIn("--seed: -1 is not a whole number of 0 or more", err)
        code, _, err = quire(*load, "--requests", 3, "--max-waiting", 2)
        self.assertEqual(code, 2, err)
        self.assertIn("--requests 2 or less, or --max-waiting 3 or more", err)
        code, _, err = quire(*load, "--requests", 16777216)
        self.assertEqual(code, 2, err)
        self.assertTrue(err.rstrip().endswith("--requests 1048576 or less"), err)
        self.assertEqual(quire(*load, "--requests", 3, "--max-waiting", 3)[0], 0)
        for command in ("attention", "pages"):
            code, out, err = quire("bench", command, "--shape", "heads=32/8,dim=65,batch=1,ctx=128", "--json")
            self.assertEqual((code, out), (2, ""), err)
            self.assertRegex(err, "nothing here can be measured: cpu takes head dims .*; this call has head dims 65")
            for sizes, wrong in (("16,257", "257"), ("16,", ""), ("0", "0"), ("x", "x")):
                code, out, err = quire("bench", command, "--page-size", sizes)
                self.assertEqual((code, out), (2, ""), err)
                self.assertIn(f"--page-size {sizes}: '{wrong}' is not a page size of 1 to 256", err)
        code, _, err = quire("bench", "offline", model("llama"), "--requests", 4, "--prompt", 2048, "--output", 1)
        self.assertEqual(code, 2, err)
        self.assertTrue(err.rstrip().endswith("the model's context is 2048: use --prompt 2047 or less"), err)
        for running, waiting, context, steps in ((1, 5, 20, 50), (16, 0, 100000, 2)):
            code, _, err = quire("bench", "scheduler", "--running", running, "--waiting", waiting, "--context", context, "--steps", steps)
            self.assertEqual(code, 0, err)

    def test_bench_step_measures_what_it_names_or_refuses(self):
        step = ("bench", "step", model("llama"), "--context", 64, "--steps", 8, "--batch")
        code, out, err = quire(*step, 64, "--kv-memory", 458752)
        self.assertEqual((code, out), (3, ""), err)
        ways = re.search(r"a batch of 64 .*--kv-memory is 448 KiB: use --kv-memory (\d+) or more, or --batch (\d+) or less", err)
        self.assertIsNotNone(ways, err)
        for batch, memory in ((64, ways[1]), (ways[2], 458752)):
            measured = self.run_json(*step, batch, "--kv-memory", memory, "--json")
            self.assertEqual([cell["batch"] for cell in measured["steps"]], [int(batch)])
        code, _, err = quire("bench", "step", model("llama"), "--batch", 1, "--context", 999999999)
        self.assertEqual(code, 2, err)
        self.assertRegex(err, r"the model's context is 2048: use --context \d+ or less")

    def test_run_prompts_is_a_batch_with_indices_and_the_same_answers(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for n in range(1, 9):
                file.write(json.dumps({"ids": list(range(1, 3 * n)), "max_tokens": n + 1}) + "\n")
            file.flush()
            code, out, err = quire("run", model("llama"), "--prompts", file.name, "--ignore-eos")
            self.assertEqual(code, 0, err)
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([line["index"] for line in lines], list(range(8)))
        for n, line in enumerate(lines, 1):
            alone = self.run_json("run", model("llama"), "--ids", ",".join(map(str, range(1, 3 * n))), "--max-tokens", n + 1,
                                  "--ignore-eos", "--json")
            self.assertEqual(alone["tokens"], line["tokens"])

    def test_score(self):
        ids = [3, 1, 4, 1, 5, 9, 2, 6]
        scored = self.run_json("score", model("qwen3"), "--ids", ",".join(map(str, ids)), "--top", 3, "--json")
        self.assertEqual(scored["tokens"], ids)
        self.assertIsNone(scored["logprobs"][0])
        self.assertEqual([len(scored["logprobs"]), len(scored["argmax"]), len(scored["top"])], [8, 8, 8])
        mean = sum(scored["logprobs"][1:]) / 7
        self.assertAlmostEqual(scored["perplexity"], math.exp(-mean), places=4)
        for best, top in zip(scored["argmax"], scored["top"]):
            self.assertEqual(best, top[0][0])
            self.assertEqual(top, sorted(top, key=lambda pair: -pair[1]))

    def test_backends(self):
        matrix = self.run_json("backends", "--json")
        self.assertEqual([row["name"] for row in matrix["rows"]], ["cpu", "reference"])
        for row in matrix["rows"]:
            for key in ("name", "description", "available", "why_not", "features", "boxes", "capture", "determinism", "page_rule",
                        "recommended_page_size"):
                self.assertIn(key, row)
            self.assertEqual(set(row["features"]), {"page_size_gt_1", "speculation", "mla", "chunked", "multimodal", "fp8_kv"})

    def test_rows_of_other_architectures_are_not_available(self):
        for device, runs in (("sm80", False), ("sm89", False), ("sm90", True), ("sm100", True), ("sm103", True), ("sm120", False)):
            row = self.run_json("backends", "--device", device, "--json")["rows"][0]
            self.assertEqual(row["name"], "cuda")
            # One statement: the description, the reason, and what the documents say.
            self.assertIn("sm_90 to sm_103", row["description"])
            reason = f"{device}: architectures 90 to 103 only"
            self.assertEqual(reason == row["why_not"], not runs, row["why_not"])
            self.assertTrue(runs or not row["available"])
            for form in ([], ["--markdown"]):
                self.assertEqual(reason in quire("backends", "--device", device, *form)[1], not runs, form)

    def test_readme_has_the_matrix_of_this_program(self):
        readme = ROOT / "README.md"
        text = readme.read_text() if readme.exists() else ""
        for name, device in (("matrix", "cpu"), ("matrix sm90", "sm90")):
            code, out, err = quire("backends", "--device", device, "--markdown")
            self.assertEqual(code, 0, err)
            block = text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
            self.assertEqual(block, out, "README.md's table is not this program's: run scripts/update_readme.sh")

    def test_backends_of_models_from_config_alone(self):
        for name in ("gemma3", "gpt_oss", "deepseek_v3"):
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "config.json").write_text((model(name) / "config.json").read_text())
                chosen = self.run_json("backends", folder, "--json")
            self.assertGreaterEqual(len(chosen["calls"]), 2)
            for call in chosen["calls"]:
                for key in ("call", "group", "layers", "problem", "choice", "refused"):
                    self.assertIn(key, call)
            self.assertIn("because", chosen["page_size"])
            self.assertEqual(chosen["determinism"], "schedule_invariant")
            # Only latent attention has a second, faster form that lower levels may use.
            self.assertRegex(chosen["determinism_price"], "1.3x .*mla.own" if name == "deepseek_v3" else "^none: ")

    def test_the_level_of_a_model_is_the_least_of_attention_and_operations(self):
        # A GPU's operations are run_to_run, whatever its rows are.
        for more in ((), ("--deterministic", "run_to_run"), ("--attention-backend", "reference")):
            self.assertEqual(self.run_json("backends", model("llama"), "--device", "sm90", *more, "--json")["determinism"], "run_to_run")
        for level in ("batch_invariant", "schedule_invariant"):
            code, out, err = quire("backends", model("llama"), "--device", "sm90", "--deterministic", level, "--json")
            self.assertEqual((code, out), (2, ""))
            self.assertIn(f"the operations of cuda (sm_90) are run_to_run and this run asks for {level}: use --deterministic run_to_run", err)
        self.assertIn("\ndeterminism run_to_run, price of that level: none", quire("backends", model("llama"), "--device", "sm90")[1])
        self.assertEqual(self.run_json("backends", model("llama"), "--deterministic", "schedule_invariant", "--json")["determinism"],
                         "schedule_invariant")

    def test_info(self):
        info = self.run_json("info", model("gemma3"), "--json")
        for key in ("architecture", "layers", "parameters", "weights_bytes", "groups", "ledger", "kv_capacity_tokens"):
            self.assertIn(key, info)
        self.assertEqual({group["name"]: group["layers"] for group in info["groups"]}, {"full": 1, "window": 5})
        self.assertEqual([group["window"] for group in info["groups"] if group["name"] == "window"], [48])

    def test_verify_one_row_briefly(self):
        report = self.run_json("verify", "--backend", "cpu", "--seconds", 5, "--json")
        for key in ("rows", "seed", "passed"):
            self.assertIn(key, report)
        for key in ("name", "cases", "passed", "failed", "skipped", "worst", "seconds"):
            self.assertIn(key, report["rows"][0])
        self.assertTrue(report["passed"])

    def test_version(self):
        version = self.run_json("--version", "--json")
        for key in ("version", "commit", "build", "instruction_set", "cuda_architectures"):
            self.assertIn(key, version)
        for words in (["run"], ["info"], ["backends"], ["chat"], ["bench"], ["bench", "attention"]):  # before what is required
            self.assertEqual(self.run_json(*words, "--version", "--json"), version)
            self.assertEqual(self.run_json(*words, "--json", "--version"), version)
            code, out, err = quire(*words, "--version")
            self.assertEqual((code, out.partition(" (")[0]), (0, "quire " + version["version"]), err)
            self.assertIn("--version", quire(*words, "--help")[1])

    def test_one_file_for_all_commands(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("page-size = 32\nmax-tokens = 3\nthreads = 1\nport = 8081\nseed = 5\n")
            file.flush()
            also = ("--config", file.name)
            answer = self.run_json("run", model("llama"), "--ids", "1,2", "--ignore-eos", "--json", *also)
            self.assertEqual((answer["page_size"], len(answer["tokens"])), (32, 3))
            self.assertEqual(self.run_json("simulate", "--synthetic", "chat:requests=3", "--json", *also)["seed"], 5)
            code, _, err = quire("replay", "/nowhere", *also)
            self.assertIn("/nowhere holds no record", err)
            for command in (["info", model("llama")], ["score", model("llama"), "--ids", "1,2"], ["tokenize", SMOLLM2, "--jsonl"], ["config"],
                            ["backends"], ["bench", "device"]):
                code, _, err = quire(*command, *also, stdin="")
                self.assertEqual(code, 0, err)

    def test_config_origins(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("page-size = 32\nthreads = 1\nkv-dtype = \"f16\"\n")
            file.flush()
            code, out, err = quire("config", "--config", file.name, "--threads", 2, "--json",
                                   env={"QUIRE_KV_DTYPE": "f32"})
        self.assertEqual(code, 0, err)
        config = json.loads(out)
        self.assertEqual(config["page-size"], {"value": "32", "origin": "file"})
        self.assertEqual(config["kv-dtype"], {"value": "f32", "origin": "environment"})
        self.assertEqual(config["threads"], {"value": "2", "origin": "flag"})
        self.assertEqual(config["device"]["origin"], "default")
        self.assertEqual([config[name]["value"] for name in ("prefix-cache", "cache-eviction", "schedule", "record-steps")],
                         ["on", "lru", "fcfs", "all"])

        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('log-level = "error"\nlog-format = "json"\n')
            file.flush()
            code, out, err = quire("config", "--config", file.name, "--json", env={"QUIRE_LOG_LEVEL": "info"})
            self.assertEqual(code, 0, err)
            config = json.loads(out)
            self.assertEqual(config["log-level"], {"value": "info", "origin": "environment"})
            self.assertEqual(config["log-format"], {"value": "json", "origin": "file"})
            code, out, err = quire("tokenize", SMOLLM2, "--jsonl", "--config", file.name, stdin="")
            self.assertNotIn("--config", err, "commands without options of their own take the log's")
        self.assertEqual(self.run_json("config", "--kv-scale", "auto", "--json")["kv-scale"], {"value": "auto", "origin": "flag"})

        # Of options that repeat the stronger origin's values stand alone.
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('stop = ["A", "B"]\nattention = "full.decode=cpu"\nlogit-bias = "1=1"\n')
            file.flush()
            stops = lambda *more, env=None: json.loads(quire("config", "--config", file.name, *more, "--json", env=env)[1])
            self.assertEqual(stops()["stop"], {"value": "A, B", "origin": "file"})
            self.assertEqual(stops(env={"QUIRE_STOP": "C"})["stop"], {"value": "C", "origin": "environment"})
            given = stops("--stop", "D", "--stop", "E", "--attention", "full.extend=cpu", "--logit-bias", "2=2", env={"QUIRE_STOP": "C"})
            self.assertEqual([given[name]["value"] for name in ("stop", "attention", "logit-bias")], ["D, E", "full.extend=cpu", "2=2"])

        shown = self.run_json("config", "--stop", "END", "--logit-bias", "3=1.5", "--json")
        self.assertEqual((shown["stop"]["value"], shown["logit-bias"]["value"]), ("END", "3=1.5"))

    def test_bench(self):
        device = self.run_json("bench", "device", "--threads", 1, "--json")
        for key in ("read_bytes_s", "copy_bytes_s", "matmul_flop_s"):
            self.assertIn(key, device["ceilings"])
        shape = "heads=4/2,dim=16,batch=1,ctx=64"
        attention = self.run_json("bench", "attention", "--threads", 1, "--shape", shape, "--page-size", "16", "--json")
        for key in ("backend", "call", "shape", "page_size", "kv_dtype", "us", "us_min", "us_max", "bytes_s", "flop_s", "fraction"):
            self.assertIn(key, attention["cells"][0])
        self.assertLessEqual(attention["cells"][0]["check"]["error"], attention["cells"][0]["check"]["gate"])
        for sizes in (("--page-size", "16,64"), ("--page-size", 16, "--page-size", 64)):
            listed = self.run_json("bench", "attention", "--threads", 1, "--shape", shape, "--shape", "heads=4/2,dim=20,ctx=64", *sizes, "--json")
            self.assertEqual([cell["page_size"] for cell in listed["cells"]], [16, 64, 16, 64])
            for cell in listed["cells"]:
                self.assertEqual("refused" in cell, cell["shape"]["qk_dim"] == 20)
                measured = [cell[key] for key in ("us", "us_min", "us_max", "bytes_s", "flop_s", "fraction", "check")]
                self.assertTrue(all(value is None for value in measured) if "refused" in cell else None not in measured, cell)
        with tempfile.TemporaryDirectory() as folder:
            svg = pathlib.Path(folder) / "pages.svg"
            pages = self.run_json("bench", "pages", "--threads", 1, "--shape", shape, "--page-size", "1,16", "--traffic",
                                  "shared:requests=30", "--plot", svg, "--json")
            ElementTree.fromstring(svg.read_text())
            code, _, err = quire("bench", "attention", "--shape", shape, "--plot", folder)
            self.assertEqual(code, 2, err)
            self.assertIn("is a folder: name a file", err)
        self.assertEqual([(cell["page_size"], cell["table_bytes"]) for cell in pages["pages"]], [(1, 256), (16, 16)])
        for cell in pages["pages"]:
            self.assertLessEqual(cell["check"]["error"], cell["check"]["gate"])
            self.assertGreater(cell["us"], 0)
            self.assertGreater(cell["hits"]["hit_tokens"], 0)
            self.assertLess(cell["hits"]["hit_tokens"], cell["hits"]["prompt_tokens"])
        step = self.run_json("bench", "step", model("llama"), "--batch", 2, "--context", 32, "--steps", 2, "--json")
        for key in ("batch", "context", "ms", "tokens_s", "fraction", "host_us", "gpu_idle_fraction"):
            self.assertIn(key, step["steps"][0])
        load = self.run_json("bench", "offline", model("llama"), "--requests", 3, "--prompt", 20, "--output", 4, "--json")
        self.assertEqual((load["requests"], load["prompt_tokens"], load["output_tokens"]), (3, 60, 12))
        self.assertGreater(load["tokens_s"], 0)
        for key in ("ttft_s", "itl_s"):
            self.assertLessEqual(load[key]["p50"], load[key]["p99"])

    def test_explain_is_there_for_every_command_with_a_model(self):
        for command in (["info", model("llama")], ["backends", model("llama")], ["score", model("llama"), "--ids", "1,2"],
                        ["run", model("llama"), "--ids", "1", "--max-tokens", 1]):
            code, out, err = quire(*command, "--explain", "--decode-attention-backend", "reference")
            self.assertEqual(code, 0, err)
            self.assertIn("full.decode runs on reference: asked for", err)

    def test_render_and_bad_lines(self):
        template = GOLDEN / "chat_templates/chatml/template.jinja"
        code, out, err = quire("render", template, "--jsonl",
                               stdin='{"messages": [{"role": "user", "content": "hi"}]}\nnot json\n')
        self.assertEqual(code, 0, err)
        good, bad = map(json.loads, out.splitlines())
        self.assertIn("hi", good["text"])
        self.assertIn("error", bad)


class Refusals(unittest.TestCase):
    """Bad input: exit code and a message that names the facts and the way out."""

    def refused(self, code, pattern, *arguments, stdin=""):
        got, out, err = quire(*arguments, stdin=stdin)
        self.assertEqual(got, code, f"{arguments}: {err}")
        self.assertRegex(err, pattern)

    def test_flags(self):
        self.refused(2, "--page-size", "run", model("llama"), "--page-sise", 16, "-p", "x")
        self.refused(2, "256", "run", model("llama"), "--page-size", 512, "--ids", 1)
        self.refused(2, "cpu", "run", model("llama"), "--attention-backend", "cpi", "--ids", 1)
        for flags in (("run", model("llama"), "--ids", 1, "--attention-backend", "fa3"), ("backends", model("llama"), "--attention-backend", "fa3"),
                      ("verify", "--backend", "fa3"), ("bench", "attention", "--backend", "fa3")):
            self.refused(2, "; what fa3 is elsewhere: `cuda` on NVIDIA GPUs", *flags)
        self.refused(2, "cuda.*; what FLASHMLA is elsewhere: .*latent attention", "backends", model("llama"), "--device", "sm90",
                     "--decode-attention-backend", "FLASHMLA")
        self.refused(2, "bf16", "run", model("llama"), "--kv-dtype", "bf61", "--ids", 1)
        self.refused(2, "cuda", "run", model("llama"), "--device", "cuda", "--ids", 1)
        self.refused(2, "legal: on, off", "run", model("llama"), "--prefix-cache", "maybe", "--ids", 1)
        self.refused(2, "fcfs", "run", model("llama"), "--schedule", "fcsf", "--ids", 1)
        self.refused(2, "lru", "run", model("llama"), "--cache-eviction", "lur", "--ids", 1)
        self.refused(2, "63", "run", model("llama"), "--prompts", self.file('{"ids": [1], "priority": 64}\n'))
        self.refused(2, "downloaded.*Hugging Face folder", "run", "meta-llama/Llama-3.1-8B", "--ids", 1)
        self.refused(2, "there is no ./nothing/here.gguf$", "run", "./nothing/here.gguf", "--ids", 1)

    def test_an_empty_value_is_no_value(self):
        # What a shell makes of a variable that is not set: nothing that was asked for may be dropped for it.
        run = ("run", model("llama"), "--ids", "1,2")
        simulate = ("simulate", "--synthetic", "chat:requests=3")
        for flag in ("attention-backend", "deterministic", "schedule", "cache-eviction", "prefix-cache", "page-order", "device", "kv-dtype",
                     "load-format", "threads", "max-tokens", "top-p", "graphs", "stop", "attention", "logit-bias", "record", "shadow",
                     "log-level", "config", "prompts", "json-schema", "grammar", "file"):
            self.refused(2, rf"^quire: --{flag} is empty: give a value, or leave it out\n$", *run, f"--{flag}", "")
        for flags in (("verify", "--backend"), ("verify", "--fault"), ("verify", "--seconds"), ("verify", "--seed"), ("replay", "x", "--backend"),
                      ("replay", "x", "--against"), ("replay", "x", "--layer"), simulate + ("--shrink",), simulate + ("--write-trace",),
                      simulate + ("--groups",), simulate + ("--calibration",), ("simulate", "--trace"), ("backends", "--device"),
                      ("serve", model("llama"), "--host"), ("score", model("llama"), "--ids-file"), ("bench", "serve", "--prompts"),
                      ("bench", "serve", "--rate"), ("bench", "attention", "--shape"), ("config", "--config")):
            self.refused(2, rf"^quire: {flags[-1]} is empty: give a value, or leave it out\n$", *flags, "")
        for flag in ("--json-schema=", "--schedule=", "--config="):
            self.refused(2, f"^quire: {flag[:-1]} is empty: give a value, or leave it out\n$", *run, flag, "--json")
        self.refused(2, "^quire: --write-trace is empty", *simulate, "--write-trace=", "--json")
        self.assertEqual(quire(*run, "--max-tokens", 1, "--served-model-name=")[0], 2, "not of this command")
        self.assertEqual(quire("run", SMOLLM2, "--max-tokens", 1, "-p", "--grammar=")[0], 0, "a prompt, not a flag")
        self.refused(2, "^quire: unknown argument ''", *run, "--json", "")
        self.refused(2, "^quire: MODEL is empty: give a value\n$", "score", "", "--text", "a")
        self.refused(2, "^quire: MODEL is empty: give a value, or leave it out\n$", "verify", "")
        self.refused(2, "config file: kv-dtype is empty", *run, "--config", self.file('kv-dtype = ""\n'))
        for name in ("ATTENTION_BACKEND", "DETERMINISTIC", "SCHEDULE", "KV_DTYPE", "THREADS", "EXPLAIN", "LOG_LEVEL"):
            code, out, err = quire(*run, env={f"QUIRE_{name}": ""})
            self.assertEqual((code, out, err), (2, "", f"quire: QUIRE_{name} is empty: set it to a value, or unset it\n"))
        self.assertEqual(quire(*run, "--max-tokens", 1, "--schedule", "fcfs", env={"QUIRE_SCHEDULE": ""})[0], 0, "a flag is stronger, as ever")
        # Texts that may be empty: the tokenizer or the template may make tokens of them.
        self.assertEqual(quire("run", SMOLLM2, "--chat", "-p", "", "--max-tokens", 1)[0], 0)

    def test_what_stands_before_the_command(self):
        for words, path in ((("--config", "f", "config"), "quire"), (("--log-level", "warn", "info", model("llama")), "quire"),
                            (("--log-level=info", "run", model("llama"), "-p", "hi"), "quire"), (("--json", "backends"), "quire"),
                            (("-p", "hi", "run", model("llama")), "quire"), (("bench", "--threads", 1, "device"), "quire bench")):
            option = next(str(word) for word in words if str(word).startswith("-")).split("=")[0]
            self.refused(2, f"{option} stands before the command: put it behind, as in {path} COMMAND {option}\n", *words)
        self.refused(2, r"unknown argument --verison \(did you mean --version", "--verison", "info")
        self.refused(2, r"unknown argument inof \(did you mean info", "inof", "run")
        self.refused(2, r"unknown argument devise \(did you mean device", "bench", "devise")
        self.refused(2, "unknown argument backends", "info", model("llama"), "backends")  # one command at a time

    def test_flags_of_other_programs(self):
        for theirs, ours in (("--max-model-len", "--max-context"), ("-c", "--max-context"), ("--max-num-seqs", "--max-running"),
                             ("--gpu-memory-utilization=0.9", "--kv-memory"), ("--api-key", "--api-key-file"),
                             ("-m", "the model without a flag")):
            self.refused(2, rf"unknown argument {theirs.split('=')[0]} \(here: {ours}", "serve", model("llama"), theirs, "x")
        self.refused(2, r"here: --temperature\)", "run", model("llama"), "--temp", 1, "--ids", 1)
        self.refused(2, r"here: --model\)", "bench", "serve", "-m", "x")
        for words in (("simulate",), ("config",), ("bench", "device")):  # these take no model
            code, _, err = quire(*words, "-m", "x")
            self.assertEqual((code, "without a flag" in err, "unknown argument -m" in err), (2, False, True), err)
        # A command without the option here names what it has.
        self.refused(2, "legal: ", "tokenize", model("llama"), "--ctx-size", 1)

    def test_prefixes_are_shared(self):
        shared = list(range(3, 93))
        lines = "".join(json.dumps({"ids": shared + [100 + i], "max_tokens": 4, "n": 2}) + "\n" for i in range(3))
        answers = {}
        for switch in ("on", "off"):
            code, out, err = quire("run", model("llama"), "--prompts", self.file(lines), "--ignore-eos",
                                   "--prefix-cache", switch, "--page-size", 64)
            self.assertEqual(code, 0, err)
            answers[switch] = [json.loads(line) for line in out.splitlines()]
        on, off = answers["on"], answers["off"]
        self.assertEqual([a["tokens"] for a in on], [a["tokens"] for a in off])
        self.assertEqual([(a["index"], a["sample"]) for a in on], [(i, s) for i in range(3) for s in range(2)])
        self.assertEqual([a["cached_tokens"] for a in on], [0, 90, 90, 90, 90, 90])
        self.assertEqual({a["cached_tokens"] for a in off}, {0})
        self.assertEqual({a["cache_miss"] for a in off}, {"off"})
        self.assertEqual(on[0]["cache_miss"], "no_prefix")
        self.refused(2, "temperature", "run", model("llama"), "--temperature", "-1", "--ids", 1)
        self.refused(2, "unknown key", "run", model("llama"), "--ids", 1, "--config", self.file("page-sise = 3\n"))
        self.refused(2, r"unknown key 'prot' \(did you mean port", "info", model("llama"), "--config", self.file("prot = 3\n"))
        self.refused(2, "unknown key 'run.page-size'", "run", model("llama"), "--ids", 1, "--config", self.file("[run]\npage-size = 3\n"))

    def test_backends_without_a_model_takes_no_option_of_a_run(self):
        self.refused(2, r'"fp8" of --kv-dtype is not known \(.*fp8_e4m3', "backends", "--kv-dtype", "fp8")
        self.refused(2, r'"nope" of --attention-backend is not known \(legal: cpu, reference\)', "backends", "--attention-backend", "nope")
        self.refused(2, r'"foo" of --deterministic is not known \(legal: none, ', "backends", "--deterministic", "foo")
        for flag in (("--kv-dtype", "fp8_e4m3"), ("--page-size", 16), ("--deterministic", "run_to_run"), ("--explain",)):
            self.refused(2, f"give a MODEL or leave {flag[0]} out", "backends", *flag)
        self.refused(2, "--markdown and --json", "backends", "--markdown", "--json")
        self.refused(2, "leave MODEL out, or --markdown", "backends", model("llama"), "--markdown")
        self.refused(2, "path is empty", "backends", "")
        # The environment is for all commands.
        self.assertEqual(quire("backends", "--device", "sm90", "--log-level", "info", env={"QUIRE_KV_DTYPE": "f32"})[0], 0)

    def test_log_options(self):
        self.refused(2, "--log-level loud: unknown .*debug", "config", "--log-level", "loud")
        self.refused(2, "--log-format jsin: unknown .*json", "config", "--log-format", "jsin")
        code, _, err = quire("info", 'no "such" model', "--log-format", "json", "--log-level", "off")
        line = json.loads(err)  # nothing beside it
        self.assertEqual((code, line["level"]), (2, "error"))
        self.assertIn('no "such" model', line["message"])
        self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}$")

    def test_environment(self):
        got, out, err = quire("config", env={"QUIRE_PAGE_SISE": "16"})
        self.assertEqual(got, 2, err)
        self.assertRegex(err, "QUIRE_PAGE_SISE.*did you mean QUIRE_PAGE_SIZE")
        got, out, err = quire("config", env={"QUIRE_LOG_LEVEL": "loud"})
        self.assertEqual(got, 2, err)
        self.assertRegex(err, "QUIRE_LOG_LEVEL loud")
        got, out, err = quire("config", env={"QUIRE_OF_SOMEBODY_ELSE": "1"})
        self.assertEqual(got, 0, err)
        self.assertRegex(err, "QUIRE_OF_SOMEBODY_ELSE.*no option")
        self.assertEqual(quire("config", env={"QUIRE_CPU_ISA": "avx2", "QUIRE_TOP_K": "3"})[2], "")

    def test_ranges_are_those_of_the_engine(self):
        self.refused(2, "--top.*128", "score", model("llama"), "--ids", "1,2", "--top", 129)
        self.assertIn("128", quire("score", "--help")[1])
        for device in ("sm95", "sm", "sm9", "sm1000", "smx"):
            self.refused(2, f"--device {device} .*sm80, sm86, sm89, sm90, sm100, sm103, sm120", "backends", "--device", device)

    def test_lists_of_numbers_have_ranges(self):
        for wrong in ("0", "-1", "257", "", "16,0", "x", "1.5"):
            self.refused(2, "--page-size (.* is not a page size of 1 to 256|is empty)", "bench", "pages", "--page-size", wrong, "--traffic",
                         "mix:requests=5")
            self.refused(2, "--batch: .*(1 to 1024|not a whole number)", "bench", "step", model("llama"), "--batch",
                         wrong.replace("257", "1025"))
        for wrong in ("1,,2", "1,", ",1"):
            self.refused(2, "--batch: '' is not a whole number", "bench", "step", model("llama"), "--batch", wrong)
        self.refused(2, "--chunk: 65537 is outside 1 to 65536", "bench", "step", model("llama"), "--chunk", 65537)
        self.refused(2, "--context: 1 is outside 2", "bench", "step", model("llama"), "--context", 1)

    def test_a_load_on_a_server_has_numbers(self):
        for port in ("99999", "0", "65536", "+80", "-1", ""):
            self.refused(2, "1 to 65535|http://HOST:PORT", "bench", "serve", "--url", f"http://127.0.0.1:{port}")
        for flag in ("--rate", "--timeout", "--temperature", "--ttft-p99", "--itl-p99"):
            for wrong in ("nan", "inf", "-1", "1e-300" if flag != "--temperature" else "-1e-300", "", "x"):
                self.refused(2, f"{flag}.*(outside|not a number|empty)", "bench", "serve", flag, wrong)
        for flag in ("--rate", "--ttft-p99", "--itl-p99"):
            self.refused(2, f"{flag}: 0 is outside", "bench", "serve", flag, 0)
        self.refused(2, "--clients.*--rate", "bench", "serve", "--clients", 5, "--rate", 3)

    def test_options_that_a_command_would_ignore(self):
        self.refused(2, "--max-running", "bench", "device", "--max-running", 2)
        self.refused(2, "--dtype", "bench", "attention", "--dtype", "f32")

    def file(self, text):
        handle = tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False)
        self.addCleanup(os.unlink, handle.name)
        handle.write(text)
        handle.close()
        return handle.name

    def test_models(self):
        self.refused(2, "there is no", "run", "/nowhere/model", "--ids", 1)
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((model("llama") / "config.json").read_text())
            config["architectures"] = ["FlyingForCausalLM"]
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            self.refused(2, "FlyingForCausalLM.*LlamaForCausalLM", "backends", folder)
        whole = (model("llama") / "model.safetensors").read_bytes()
        for size in (0, 4, 100, len(whole) - 1):
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "config.json").write_text((model("llama") / "config.json").read_text())
                (pathlib.Path(folder) / "model.safetensors").write_bytes(whole[:size])
                self.refused(2, "model.safetensors", "run", folder, "--ids", 1)

    def test_limits(self):
        self.refused(2, "context", "run", model("llama"), "--max-context", 16, "--ids", ",".join(["1"] * 17))
        self.refused(2, "which is the model's own: shorten it by 9952$", "run", model("llama"), "--ids", ",".join(["1"] * 12000))
        self.refused(2, "--max-context 9, the model has 2048", "run", model("llama"), "--max-context", 8, "--ids", "1,2,3,4,5,6,7,8,9")
        code, out, err = quire("run", model("llama"), "--max-context", 8, "--ids", "1,2,3,4,5,6,7,8", "--max-tokens", 1, "--ignore-eos", "--json")
        self.assertEqual((code, json.loads(out)["finish_reason"], len(json.loads(out)["tokens"])), (0, "length", 1), err)
        self.refused(2, "2048", "run", model("llama"), "--max-context", 4096, "--ids", 1)
        self.refused(3, "KV|page", "run", model("llama"), "--kv-memory", "64K", "--max-context", 2048, "--ids",
                     ",".join(["1"] * 2000))
        self.refused(2, "0 to 258", "run", model("llama"), "--ids", 70000)

    def test_values_that_no_flag_takes(self):
        for flag in ("--page-size", "--threads", "--chunk-tokens", "--max-running", "--max-context", "--max-tokens"):
            self.refused(2, "outside 1", "run", model("llama"), "--ids", 1, flag, 0)
        for bias in ("=1", "99999999999=1", "1=inf", "1=1e400", "1="):
            self.refused(2, "ID=X", "run", model("llama"), "--ids", 1, "--logit-bias", bias)
        self.refused(2, "not a size", "run", model("llama"), "--ids", 1, "--kv-memory", "nan")
        self.refused(2, "none given", "run", model("llama"), "--ids", "")
        self.refused(2, "folder", "run", model("llama"), "-f", GOLDEN)
        self.refused(2, "folder", "run", model("llama"), "--ids", 1, "--config", GOLDEN)
        self.refused(2, "seed", "verify", "--seed", "-1")

    def test_prompts_name_the_line_of_the_file(self):
        ids = '{"ids": [1], "max_tokens": 1}\n'
        self.refused(2, "line 3.*token 999", "run", model("llama"), "--prompts", self.file(ids + '\n{"ids": [999]}\n'))
        self.refused(2, "line 2.*99999999999", "run", model("llama"), "--prompts",
                     self.file(ids + '{"ids": [1], "logit_bias": {"99999999999": 1}}\n'))
        self.refused(2, "line 1.*--chat", "run", model("llama"), "--chat", "--prompts", self.file(ids))

    def test_a_late_line_is_checked_before_the_first_step(self):
        good = '{"ids": [1, 2], "max_tokens": 30}\n'
        for late in ('"ids": [999]', '"ids": [1], "max_tokens": 4, "stop": [""]', '"ids": [%s]' % ",".join(["1"] * 3000),
                     '"ids": [1], "priority": 64', '"ids": [1], "deadline_s": 1e-300', '"prompt": ""'):
            got, out, err = quire("run", model("llama"), "--prompts", self.file(good + good + '{%s, "arrival_s": 0.2}\n' % late))
            self.assertEqual((got, out), (2, ""), late)
            self.assertRegex(err, "line 3", late)

    def test_more_requests_than_the_queue_has_room_for(self):
        lines = "".join(json.dumps({"ids": [1, 2, i], "max_tokens": 3, "n": 2}) + "\n" for i in range(3, 10))
        outs = []
        for more in ((), ("--max-waiting", 1), ("--max-waiting", 2, "--max-running", 1)):
            code, out, err = quire("run", model("llama"), "--prompts", self.file(lines), "--ignore-eos", *more)
            self.assertEqual(code, 0, err)
            outs.append([(line["index"], line["sample"], line["tokens"]) for line in map(json.loads, out.splitlines())])
        self.assertEqual([line[:2] for line in outs[0]], [(i, n) for i in range(7) for n in range(2)])
        self.assertEqual(outs[0], outs[1])
        self.assertEqual(outs[0], outs[2])
        code, out, err = quire("run", model("llama"), "--ids", "1,2", "--n", 8, "--max-waiting", 2, "--max-tokens", 3, "--json")
        self.assertEqual(code, 0, err)
        self.assertEqual([json.loads(line)["sample"] for line in out.splitlines()], list(range(8)))

    def test_samples_of_33_tokens_compute_the_prompt_once(self):
        for tokens, cached in ((32, [0] * 5), (33, [0] + [32] * 4)):
            code, out, err = quire("run", model("llama"), "--ids", ",".join(map(str, range(1, tokens + 1))), "--n", 5, "--max-tokens", 1,
                                   "--json")
            self.assertEqual(code, 0, err)
            self.assertEqual([json.loads(line)["cached_tokens"] for line in out.splitlines()], cached)

    def test_a_deadline_goes_on_while_a_request_is_held_back(self):
        lines = ['{"ids": [1], "max_tokens": 1500}\n'] + ['{"ids": [2], "max_tokens": 1500, "deadline_s": 0.01}\n'] * 3
        code, out, err = quire("run", model("llama"), "--ignore-eos", "--max-waiting", 1, "--max-running", 1, "--prompts",
                               self.file("".join(lines)))
        self.assertEqual(code, 0, err)
        answers = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([a["finish_reason"] for a in answers], ["length"] + ["deadline"] * 3)
        self.assertEqual([len(a["tokens"]) for a in answers[1:]], [0, 0, 0])

    def test_what_the_pool_cannot_hold_is_refused_whatever_cuts_it(self):
        pool = ("--kv-memory", 40000, "--page-size", 8, "--max-context", 80, "--ids", 1)
        for asked in (70, 100):
            self.refused(3, r"24 new tokens or fewer \(--max-tokens 24\), or .* \(--kv-memory \d+ or more\)", "run", model("llama"), *pool, "--max-tokens", asked)
        self.refused(3, "--max-tokens 24", "run", model("llama"), *pool, "--max-tokens", 100, "--n", 1000)
        code, out, err = quire("run", model("llama"), *pool, "--max-tokens", 24, "--ignore-eos", "--json")
        self.assertEqual((code, json.loads(out)["finish_reason"]), (0, "length"), err)
        code, out, err = quire("run", model("llama"), "--max-context", 80, "--ids", 1, "--max-tokens", 100, "--ignore-eos", "--json")
        self.assertEqual((code, json.loads(out)["finish_reason"], len(json.loads(out)["tokens"])), (0, "context", 79), err)

    def test_samples_are_text_unless_json_is_asked_for(self):
        code, out, err = quire("run", model("llama"), "--ids", "1,2", "--n", 2, "--max-tokens", 2)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^--- sample 0 ---\n(?s:.*)\n--- sample 1 ---\n")
        self.assertEqual(err.count("peak memory"), 2)
        for more in ((), ("--n", 2)):
            got, out, err = quire("run", SMOLLM2, "-p", "", *more)
            self.assertEqual(got, 2)
            self.assertNotIn("line", err)

    def test_values_of_a_line_are_kept_or_refused(self):
        def line(text):
            return ("run", model("llama"), "--prompts", self.file("{%s}\n" % text))
        for text, pattern in (('"ids": [1], "deadline_s": 1e-7', "deadline.*1e-06"), ('"ids": [1], "temperature": 1e-300', "temperature.*small"),
                              ('"ids": [1], "logit_bias": {"1": 1e-300}', "logit_bias"), ('"ids": [1], "n": 1, "n": 2', '"n".*twice'),
                              ('"ids": [1], "logit_bias": {"07": 1}', "logit_bias.*07"), ('"ids": [1], "logit_bias": {"-0": 1}', "logit_bias.*-0"),
                              ('"ids": [1], "logit_bias": {"1": 1, "1": 2}', "twice"), ('"prompt": "a", "prompt": "b"', "twice")):
            self.refused(2, "line 1.*" + pattern, *line(text))
        self.refused(2, "--temperature.*small", "run", model("llama"), "--ids", 1, "--temperature", "1e-300")
        for bias in ("1=1e-40", "07=1", "-0=1"):
            self.refused(2, "ID=X", "run", model("llama"), "--ids", 1, "--logit-bias", bias)
        nulls = ('"temperature", "top_k", "stop", "ignore_eos", "logit_bias", "priority", "deadline_s", "arrival_s", "cache_salt", "n", '
                 '"max_tokens", "prompt", "messages"').replace(",", ": null,") + ": null"
        code, out, err = quire(*line('"ids": [1], ' + nulls), "--max-tokens", 2, "--ignore-eos")
        self.assertEqual((code, len(out.splitlines()), len(json.loads(out)["tokens"])), (0, 1, 2), err)

    def test_devices(self):
        for device in ("cuda", "cuda:-1", "cuda:7", "cuda:x"):
            got, out, err = quire("run", model("llama"), "--ids", 1, "--device", device)
            self.assertEqual(got, 2)
            self.assertNotIn("unknown device", err)
        self.refused(2, "unknown device", "run", model("llama"), "--ids", 1, "--device", "cud:0")

    def test_generation_config_is_not_passed_over(self):
        with tempfile.TemporaryDirectory() as folder:
            for part in (model("llama") / "config.json", model("llama") / "model.safetensors"):
                os.symlink(part.resolve(), pathlib.Path(folder) / part.name)
            for bad in ("", "[]", "[" * 100000, '{"do_sample": true, "temperature": -1}', '{"eos_token_id": [99999999999999]}'):
                (pathlib.Path(folder) / "generation_config.json").write_text(bad)
                self.refused(2, "generation_config.json", "run", folder, "--ids", 1, "--max-tokens", 1)

    def test_a_tokenizer_config_that_is_broken_off_is_not_passed_over(self):
        with tempfile.TemporaryDirectory() as folder:
            for part in (model("llama") / "config.json", model("llama") / "model.safetensors"):
                os.symlink(part.resolve(), pathlib.Path(folder) / part.name)
            for bad in ("{", "[]"):
                (pathlib.Path(folder) / "tokenizer_config.json").write_text(bad)
                self.refused(2, "tokenizer_config.json", "run", folder, "--ids", 1, "--max-tokens", 1)
            (pathlib.Path(folder) / "tokenizer_config.json").write_text("{}")
            self.assertEqual(quire("run", folder, "--ids", 1, "--max-tokens", 1)[0], 0)

    def test_what_is_no_origin_of_a_page_is_refused(self):
        for origin in ("http://a\r\nX: y", "page.example", "http://a/"):
            self.refused(2, "--cors (?s:.*): not an origin: give http://HOST", "serve", model("llama"), "--cors", origin)

    def test_a_row_of_another_device(self):
        code, _, why = quire("verify", "--device", "cuda", "--seconds", 1, "--share", "1/1000")
        if code == 2:  # no GPU: the reason is the device's, whichever flag asks for it
            self.refused(2, "^quire: --backend cuda: " + re.escape(why.removeprefix("quire: ")), "verify", "--backend", "cuda")
        self.refused(2, "there is no attention backend 'cudo'; this build has cpu, reference", "verify", "--backend", "cudo")

    def test_lists_and_sizes_are_taken_whole_or_not(self):
        for ids in ("1,,2", ",1", "1,", "5k", "1.5", "99999999999999999999"):
            self.refused(2, "a comma without a token id" if "," in ids else f"'{ids}' is not a token id", "run", model("llama"), "--ids", ids)
        self.assertEqual(quire("score", model("llama"), "--ids-file", self.file("1, 2\n3\n"))[0], 0)
        for flag, size in (("--kv-memory", "200000.9"), ("--record-limit", "9000.7")):
            self.refused(2, f"{flag} {size}: not a size: give whole bytes", "run", model("llama"), "--ids", 1, flag, size)
        self.refused(2, "requests is given twice", "simulate", "--synthetic", "mix:requests=3,requests=4")
        self.refused(2, "dim is given twice", "bench", "attention", "--shape", "heads=4/2,dim=128,dim=64")

    def test_logits_that_are_not_finite_are_an_error_not_an_answer(self):
        whole = bytearray((model("llama") / "model.safetensors").read_bytes())
        header = int.from_bytes(whole[:8], "little")
        head = json.loads(whole[8:8 + header])["lm_head.weight"]["data_offsets"][0] + 8 + header
        whole[head:head + 2] = b"\xc0\x7f"  # a bf16 NaN
        with tempfile.TemporaryDirectory() as folder:
            os.symlink((model("llama") / "config.json").resolve(), pathlib.Path(folder) / "config.json")
            (pathlib.Path(folder) / "model.safetensors").write_bytes(whole)
            for arguments in (["run", folder, "--ids", "1,2"], ["run", folder, "--ids", "1,2", "--json"],
                              ["run", folder, "--prompts", self.file('{"ids": [1, 2]}\n')], ["score", folder, "--ids", "1,2"],
                              ["bench", "step", folder, "--batch", 1, "--context", 8, "--steps", 2],
                              ["bench", "offline", folder, "--requests", 2, "--prompt", 8, "--output", 2]):
                self.refused(2, r"numerical error in request \d+, step \d+: the logits at position \d+ are not finite", *arguments)

    def test_chat_without_a_template_ends_at_once(self):
        self.refused(2, "chat template", "chat", model("llama"), stdin="hi\n")

    def limited(self, limits, *arguments):
        command = ["bash", "-c", f'{limits} && exec "$@"', "bash", QUIRE, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stderr

    def test_output_that_cannot_be_written(self):
        for arguments in (["run", model("llama"), "--ids", 1, "--max-tokens", 2, "--json"], ["backends", "--json"], ["--help"],
                          ["run", "--help"], ["bench", "--help"], ["--version"], ["--version", "--json"], []):
            for redirection in ("exec >/dev/full", "exec >&-"):
                code, err = self.limited(redirection, *arguments)
                self.assertEqual(code, 3, err)
                self.assertIn("standard output", err)

    def test_too_little_memory_ends_with_a_message(self):
        codes = set()
        for kib in (20000, 30000, 40000, 60000, 100000):
            code, err = self.limited(f"ulimit -v {kib}", "run", model("llama"), "--ids", 1, "--max-tokens", 2, "--threads", 64)
            self.assertIn(code, (0, 3, 127), err)  # 127: the program itself does not fit
            codes.add(code)
        self.assertIn(3, codes)

    def test_verify_without_the_address_space_for_far_pages(self):
        code, err = self.limited("ulimit -v 6000000", "verify", "--backend", "cpu")
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"[\d.]+ GiB of address space .*ulimit -v unlimited.*pages far")

    def test_memory_advice_names_flags_that_exist(self):
        code, err = self.limited("ulimit -v 4000000", "bench", "scheduler", "--running", 65536)
        self.assertEqual(code, 3, err)
        flags = set(re.findall(r"--[a-z-]+", err))
        self.assertIn("--running", flags)
        _, known, _ = quire("bench", "scheduler", "--help")
        for flag in flags:
            self.assertIn(flag + " ", known)

    def test_pinned_backend_that_cannot(self):
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((model("llama") / "config.json").read_text())
            config["head_dim"] = 72
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            self.refused(2, "cpu.*72", "backends", folder, "--attention-backend", "cpu")


class RecordAndReplay(unittest.TestCase):
    """docs/DEBUGGING.md, from outside."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.record = pathlib.Path(self.folder.name) / "made" / "here"

    def run_recorded(self, *more):
        code, out, err = quire("run", model("llama"), "--ids", ",".join(str(5 + i * 7 % 190) for i in range(70)), "--max-tokens", 5,
                               "--ignore-eos", "--chunk-tokens", 32, "--page-size", 8, "--json", "--record", self.record, *more)
        self.assertEqual(code, 0, err)
        return json.loads(out), err

    def replay(self, code, *more):
        got, out, err = quire("replay", self.record, "--json", *more)
        self.assertEqual(got, code, err)
        return json.loads(out) if code != 2 else err

    def test_a_planted_fault_is_located_by_one_command(self):
        plain = json.loads(quire("run", model("llama"), "--ids", ",".join(str(5 + i * 7 % 190) for i in range(70)), "--max-tokens", 5,
                                 "--ignore-eos", "--json")[1])
        answer, _ = self.run_recorded()
        self.assertEqual(answer["tokens"], plain["tokens"])
        self.assertEqual((answer["record"]["steps"], answer["record"]["ended_early"]), (7, ""))
        sound = self.replay(0)
        self.assertEqual((sound["steps"], sound["calls"], sound["compared"], sound["first_difference"]), (7, 14, 14, None))
        self.assertIsNone(self.replay(0, "--backend", "cpu", "--against", "recorded")["first_difference"])
        # Chunks of 32: key 64 comes with the third step, and the fault drops the last tile of 64 keys.
        found = self.replay(1, "--backend", "cpu", "--fault", "dropped_split")["first_difference"]
        self.assertEqual((found["step"], found["layer"], found["row"], found["head"]), (2, 0, 0, 0))
        self.assertEqual((found["call"], found["position"], found["keys"]), ("full.extend", 64, [64, 65]))
        self.assertGreater(found["error"], found["gate"])
        later = self.replay(1, "--backend", "cpu", "--fault", "dropped_split", "--layer", 1, "--step", "4-")
        self.assertEqual((later["first_difference"]["step"], later["first_difference"]["layer"]), (4, 1))
        self.assertEqual(later["first_difference"]["keys"], [64, 72])
        text = quire("replay", self.record, "--backend", "cpu", "--fault", "dropped_split")[1]
        self.assertIn("first difference: step 2, layer 0, row 0, head 0, keys [64, 65)", text)

    def test_what_is_no_record_is_refused(self):
        self.run_recorded("--record-layers", "0")
        file = self.record / "steps.qrec"
        whole = file.read_bytes()

        def refused(pattern, content):
            file.write_bytes(content)
            self.assertRegex(self.replay(2), pattern)

        refused("truncated", whole[:-1])
        refused("truncated", whole[:100])
        refused("no record", whole[:20])
        refused("no record", b"{}")
        refused("version 7", whole[:8] + b"\x07\0\0\0" + whole[12:])
        refused("checksum", whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        refused("checksum", whole[:16] + b"\xff" * 8 + whole[24:])
        file.unlink()
        self.assertRegex(self.replay(2), "--record")
        file.write_bytes(whole)
        self.assertRegex(self.replay(2, "--backend", "cpi"), "cpu")
        self.assertRegex(self.replay(2, "--fault", "dropped_split"), "--backend")
        self.assertRegex(self.replay(2, "--backend", "cpu", "--fault", "dropped"), "dropped_split")
        self.assertRegex(self.replay(2, "--backend", "cpu", "--fault", "sink_twice"), "no call")
        self.assertRegex(self.replay(2, "--layer", "3"), "--layer")
        self.assertRegex(self.replay(2, "--step", "x"), "--step x")
        self.assertRegex(quire("run", model("llama"), "--ids", 1, "--record", self.record)[2], "holds a record already")

    def test_settings_that_store_nothing_are_refused_and_leave_nothing(self):
        def refused(pattern, *more, code=2):
            got, _, err = quire("run", model("llama"), "--ids", "1,2", "--max-tokens", 2, *more)
            self.assertEqual(got, code, err)
            self.assertRegex(err, pattern)
            self.assertEqual(os.listdir(self.folder.name), [])
        refused("--record-layers 99: there is no layer 99, the model has 0 to 1", "--record", self.record, "--record-layers", 99)
        refused("--record-steps none stores nothing", "--record", self.record, "--record-steps", "none")
        refused("--record .*empty", "--record", "")
        refused("--record-layers .*empty", "--record", self.record, "--record-layers", "")
        refused(r"--record-limit 1 .*use \d+ or more", "--record", self.record, "--record-limit", 1)
        refused("context", "--record", self.record, "--max-context", 1)  # refused after the engine was opened
        least = re.search(r"use (\d+) or more", quire("run", model("llama"), "--ids", 1, "--record", self.record, "--record-limit", 1)[2])
        _, err = self.run_recorded("--record-limit", least[1])
        self.assertRegex(err, "ended after 0 of 7 steps")
        self.assertRegex(self.replay(2), "no steps: see --record-steps / --record-limit")

    def test_a_record_of_no_step_says_so(self):
        _, err = self.run_recorded("--record-steps", "1000-")
        self.assertRegex(err, "record holds no steps: the run had 7, see --record-steps")
        self.assertRegex(self.replay(2), "no steps: see --record-steps / --record-limit")

    def test_replay_says_what_there_is(self):
        self.run_recorded("--record-steps", "1-3,5")
        self.assertRegex(self.replay(2, "--layer", 99), "it has --layer 0-1 and --step 1-3,5")
        self.assertRegex(self.replay(2, "--step", "1000-"), "it has --layer 0-1 and --step 1-3,5")
        legal = re.search("legal: (.*)\\)", self.replay(2, "--backend", "nothing like it"))[1].split(", ")
        self.assertEqual(sorted(set(legal)), sorted(legal))
        rows = [row["name"] for row in json.loads(quire("backends", "--json")[1])["rows"]]
        self.assertTrue(set(rows) <= set(legal))
        if json.loads(quire("--version", "--json")[1])["build"].startswith("cpu"):
            self.assertEqual(set(legal), set(rows) | {"recorded"})
            self.assertRegex(self.replay(2, "--backend", "cuda"), "no attention backend 'cuda' in this build")
        self.assertRegex(self.replay(2, "--layer", "none"), "it has --layer 0-1")

    def test_the_limit_ends_the_record_and_not_the_run(self):
        answer, err = self.run_recorded("--record-limit", "1M")
        self.assertEqual(len(answer["tokens"]), 5)
        self.assertLessEqual(answer["record"]["bytes"], 1 << 20)
        self.assertRegex(err, "record ended after 1 of 7 steps: .*limit")
        self.assertEqual(self.replay(0)["steps"], 1)

    def test_a_folder_that_cannot_be_made(self):
        code, _, err = quire("run", model("llama"), "--ids", 1, "--record", "/dev/full/x")
        self.assertEqual(code, 2)
        self.assertIn("--record", err)

    def test_shadow(self):
        code, out, err = quire("run", model("gemma3"), "--ids", "1,2,3,4,5", "--max-tokens", 40, "--ignore-eos", "--json", "--shadow",
                               "reference:0.3")
        self.assertEqual(code, 0, err)
        shadow = json.loads(out)["shadow"]
        self.assertEqual(shadow["backend"], "reference")
        self.assertTrue(0 < shadow["steps"] < shadow["of_steps"])
        self.assertGreater(shadow["calls"], shadow["steps"])
        self.assertEqual(shadow["calls_over"], 0)
        for key in ("max_abs", "max_rel"):
            self.assertEqual(set(shadow[key]), {"error", "step", "call", "layer", "row", "head"})
        self.assertTrue(0 < shadow["share"] < 1)
        self.assertIn("shadow reference", err)
        self.assertRegex(quire("run", model("llama"), "--ids", 1, "--shadow", "reference")[2], "BACKEND:FRACTION")


class RealModel(unittest.TestCase):
    def test_chat_answer_is_sensible(self):
        code, out, err = quire("run", SMOLLM2, "--chat", "-p", "What is the capital of France?", "--max-tokens", 40)
        self.assertEqual(code, 0, err)
        self.assertIn("Paris", out)
        self.assertRegex(err, r"full.decode=cpu.*page \d+.*tok/s.*peak memory")

    def test_a_stop_string_ends_the_answer_with_all_totals(self):
        code, out, err = quire("run", SMOLLM2, "-p", "The capital of France is", "--stop", "Paris", "--max-tokens", 12, "--json")
        self.assertEqual(code, 0, err)
        answer = json.loads(out)
        self.assertEqual((answer["text"], answer["finish_reason"], answer["prompt_tokens"]), (" ", "stop", 5))
        self.assertGreater(answer["prefill_tok_s"], 0)

    def test_peak_memory_is_file_and_kv_and_150_mb(self):
        limits = ["--max-context", 1024, "--max-running", 1]
        ledger = json.loads(quire("info", SMOLLM2, *limits, "--json")[1])["ledger"]
        kv = sum(line["bytes"] for line in ledger if line["owner"] == "KV arena")
        peak = json.loads(quire("run", SMOLLM2, *limits, "-p", "A fox. " * 200, "--max-tokens", 4, "--json")[1])["peak_rss_bytes"]
        self.assertLessEqual(peak, SMOLLM2.stat().st_size + kv + 150e6)

    def test_chat_reads_lines_and_saves(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "talk.json"
            code, out, err = quire("chat", SMOLLM2, "--system", "Be brief.", "--max-tokens", 4,
                                   stdin=f"Forget me.\n/reset\nSay hello.\n/save {saved}\n/quit\nnever read\n")
            self.assertEqual(code, 0, err)
            self.assertEqual([message["role"] for message in json.loads(saved.read_text())], ["system", "user", "assistant"])
            # An empty one is a message too: the model's template has one of its own for a chat without.
            code, out, err = quire("chat", SMOLLM2, "--system", "", "--max-tokens", 4, stdin=f"Say hello.\n/save {saved}\n")
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(saved.read_text())[0], {"role": "system", "content": ""})

    def test_ctrl_c_discards_a_line_or_stops_an_answer_and_never_ends_the_chat(self):
        prompt = r"\n> $"
        answer = r"(?:\w+\W+){40}"  # more words than what is typed is shown in
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "talk.json"

            def talk():
                chat.type(f"/save {saved}\n")
                chat.until(r"messages saved\r" + prompt)
                return [message["content"] for message in json.loads(saved.read_text())]

            chat = Terminal("chat", SMOLLM2, "--max-tokens", 2000, "--ignore-eos", "--temperature", 0)
            self.addCleanup(os.close, chat.file)
            chat.until(r"Ctrl-D ends the chat\r" + prompt)
            chat.type("half a line\x03")
            chat.until(r"\^C\r" + prompt)
            # Keys that follow at once are not lost, the line ends wherever the cursor is, and letters are UTF-8.
            chat.type("much\x01too \x03Sag etwas \u00fcber F\u00fcchse.\n")
            chat.until(r"F\u00fcchse\.\r\n")
            chat.until(answer)
            chat.type("\x03")
            chat.until(r"page \d+.*peak memory.*" + prompt)
            first = talk()
            self.assertEqual((len(first), first[0]), (2, "Sag etwas \u00fcber F\u00fcchse."))
            self.assertLess(len(first[1]), 4000)
            # An empty line says how to leave, once.
            chat.type("\x03")
            chat.until(r"\^C\r\nCtrl-D or /quit ends the chat\r" + prompt)
            chat.type("\x03")
            self.assertNotIn("quit", chat.until(r"\^C\r" + prompt))
            self.assertEqual(talk(), first)
            # At any moment around the end of an answer.
            chat.type("Go on.\n")
            chat.until(answer)
            for _ in range(40):
                chat.type("\x03")
                time.sleep(0.005)
            chat.until(r"peak memory")
            time.sleep(0.5)
            chat.type("\x03")
            chat.until(r"\^C\r" + prompt)
            self.assertEqual(talk()[:3], first + ["Go on."])
            chat.until_keys_are_read()
            chat.type("\x04")
            self.assertEqual(chat.end(), 0)

    def test_logprobs_within_the_tolerances_of_int8_activations(self):
        for name in ("prose", "code", "numbers"):
            golden = json.loads((GOLDEN / f"smollm2/{name}.json").read_text())
            code, out, err = quire("score", SMOLLM2, "--ids", ",".join(map(str, golden["ids"])), "--top", 5, "--kv-dtype", "f32",
                                   "--json")
            self.assertEqual(code, 0, err)
            ours = json.loads(out)["logprobs"][1:]
            signed = [a - b for a, b in zip(ours, golden["logprobs"])]
            self.assertLessEqual(sum(map(abs, signed)) / len(signed), 0.08)
            self.assertLessEqual(max(map(abs, signed)), 0.6)
            self.assertLessEqual(abs(sum(signed) / len(signed)), 0.01)

    def test_tokenizer_of_the_file(self):
        for name in ("prose", "code", "numbers"):
            golden = json.loads((GOLDEN / f"smollm2/{name}.json").read_text())
            code, out, err = quire("tokenize", SMOLLM2, "--jsonl", stdin=json.dumps({"text": golden["text"], "add_special_tokens": False}) + "\n")
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out)["ids"], golden["ids"])
            code, out, err = quire("detokenize", SMOLLM2, "--jsonl", stdin=json.dumps({"ids": golden["ids"]}) + "\n")
            self.assertEqual(json.loads(out)["text"], golden["text"])

    def test_same_seed_same_text_whatever_the_schedule(self):
        base = ["run", SMOLLM2, "--chat", "-p", "Tell me a story about a fox.", "--temperature", 1, "--seed", 7, "--max-tokens", 40,
                "--json"]
        expected = json.loads(quire(*base)[1])["tokens"]
        for change in (["--threads", 1], ["--page-size", 7], ["--chunk-tokens", 5], ["--graphs", "off"], ["--overlap", "off"]):
            self.assertEqual(json.loads(quire(*base, *change)[1])["tokens"], expected, change)


if __name__ == "__main__":
    QUIRE = sys.argv.pop(1)
    if not SMOLLM2.exists():
        sys.exit(f"{SMOLLM2} was not fetched: scripts/deps/fetch.sh")
    unittest.main()
