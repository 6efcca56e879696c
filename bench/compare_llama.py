#!/usr/bin/env python3
"""Quire and llama.cpp side by side on one machine, model file and thread count: rounds of both, interleaved, medians and ratios.

usage: compare_llama.py QUIRE LLAMA_BIN MODEL.gguf [--threads 2] [--rounds 5] [--only pp512,tg128,...] [--q8-0 FILE] [--json FILE]

LLAMA_BIN: the folder with llama-bench, llama-batched-bench, llama-quantize and first_token of a llama.cpp build.
pp512      prompt tokens/s of a 512-token prompt
tg128      decode tokens/s of 128 tokens from an empty context
tg@4096    decode tokens/s of 32 tokens after 4,096
8x tg64    decode tokens/s of eight sequences together, contexts of 128 to 192
8 : 1      decode tokens/s of eight sequences over those of one, both at contexts of 160 tokens (quire) or from 128 to 192
           (llama.cpp), each pair from one process: of MODEL and of a Q8_0 file made from it by llama-quantize. The Q8_0 file
           is --q8-0 FILE, made when it is not there and kept; without the option it is made in a temporary folder. It is
           requantised, so its text says nothing.
first      seconds from process start to the first token of a short prompt

--json FILE (- is standard output) holds all of it: medians, least, most and ratios.
"""
import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT = "Write a short, friendly letter to a neighbour who looked after the garden while we were away."


def output_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return done.stdout


def random_ids(count):
    source = random.Random(count)
    return ",".join(str(source.randrange(1000, 40000)) for _ in range(count))


def seconds_to_first_byte(command):
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.read(1)
    seconds = time.monotonic() - begin
    process.communicate()
    return seconds


class Quire:
    def __init__(self, program, model, threads):
        self.run = [program, "run", model, "--threads", str(threads), "--ignore-eos", "--json"]
        self.text = [program, "run", model, "--threads", str(threads), "--max-tokens", "1", "-p", PROMPT]
        self.step = [program, "bench", "step", model, "--threads", str(threads), "--json"]

    def answer(self, prompt_tokens, max_tokens):
        return json.loads(output_of(self.run + ["--ids", random_ids(prompt_tokens), "--max-tokens", str(max_tokens)]))

    def pp512(self):
        return self.answer(512, 1)["prefill_tok_s"]

    def tg128(self):
        return self.answer(1, 129)["decode_tok_s"]

    def tg4096(self):
        return self.answer(4096, 33)["decode_tok_s"]

    def decode(self, *batches):
        cells = json.loads(output_of(self.step + ["--batch", ",".join(map(str, batches)), "--context", "160", "--steps", "64"]))["steps"]
        return [cell["tokens_s"] for cell in cells]

    def eight(self):
        return self.decode(8)[0]

    def first(self):
        return seconds_to_first_byte(self.text)


class Llama:
    def __init__(self, folder, model, threads):
        self.folder, self.model, self.threads = folder, model, str(threads)

    def bench(self, *what):
        command = [os.path.join(self.folder, "llama-bench"), "-m", self.model, "-t", self.threads, *what, "-r", "1", "-o", "json"]
        return json.loads(output_of(command))[0]["avg_ts"]

    def pp512(self):
        return self.bench("-p", "512", "-n", "0")

    def tg128(self):
        return self.bench("-p", "0", "-n", "128")

    def tg4096(self):
        return self.bench("-p", "0", "-n", "32", "-d", "4096")

    def decode(self, *batches):
        for _ in range(5):  # now and then the tool ends without having printed its line
            out = output_of([os.path.join(self.folder, "llama-batched-bench"), "-m", self.model, "-t", self.threads, "-c", "2048",
                             "-npp", "128", "-ntg", "64", "-npl", ",".join(map(str, batches)), "--output-format", "jsonl"])
            lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            if [line["pl"] for line in lines] == list(batches):
                return [line["speed_tg"] for line in lines]
        raise RuntimeError(f"llama-batched-bench printed no result for {batches} sequences")

    def eight(self):
        return self.decode(8)[0]

    def first(self):
        return seconds_to_first_byte([os.path.join(self.folder, "first_token"), self.model, self.threads, PROMPT])


FIGURES = {"pp512": ("pp512", "tokens/s"), "tg128": ("tg128", "tokens/s"), "tg@4096": ("tg4096", "tokens/s"),
           "8x tg64": ("eight", "tokens/s"), "first": ("first", "s")}
GAIN = "8 : 1"


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def make_q8_0(llama, model, target):
    if not os.path.exists(target):
        subprocess.run([os.path.join(llama, "llama-quantize"), "--allow-requantize", model, target, "Q8_0"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return target


class Gains:
    """Eight sequences against one, for several files: every sample is a pair from one process."""

    def __init__(self, engines):
        self.engines = engines  # {file: {engine: tool}}
        self.samples = {file: {engine: [] for engine in tools} for file, tools in engines.items()}

    def measure(self):
        for file, tools in self.engines.items():
            for engine, tool in tools.items():
                self.samples[file][engine].append(tool.decode(1, 8))

    def report(self):
        return {file: {engine: {"one": summary([one for one, _ in pairs]), "eight": summary([eight for _, eight in pairs]),
                                "ratio": summary([eight / one for one, eight in pairs])}
                       for engine, pairs in engines.items()}
                for file, engines in self.samples.items()}


def print_gains(report):
    for file, engines in report.items():
        for engine, figures in engines.items():
            one, eight, ratio = figures["one"], figures["eight"], figures["ratio"]
            print(f"{GAIN:10} {engine:9} {file}: {one['median']:.2f} ({one['min']:.2f}..{one['max']:.2f}) and {eight['median']:.2f} "
                  f"({eight['min']:.2f}..{eight['max']:.2f}) tokens/s, {ratio['median']:.2f}x ({ratio['min']:.2f}..{ratio['max']:.2f})")


def print_figure(name, figure):
    ours, theirs = figure["quire"], figure["llama.cpp"]
    print(f"{name:10} quire {ours['median']:9.2f} ({ours['min']:.2f}..{ours['max']:.2f})   llama.cpp {theirs['median']:9.2f} "
          f"({theirs['min']:.2f}..{theirs['max']:.2f}) {figure['unit']:9} {figure['ratio']:5.2f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("llama")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join([*FIGURES, GAIN]))
    parser.add_argument("--q8-0")
    parser.add_argument("--json")
    options = parser.parse_args()
    wanted = options.only.split(",")
    unknown = [name for name in wanted if name not in FIGURES and name != GAIN]
    if unknown:
        parser.error(f"--only {unknown[0]}: legal are {', '.join([*FIGURES, GAIN])}")
    with tempfile.TemporaryDirectory() as folder:
        report = compare(options, wanted, options.q8_0 or os.path.join(folder, "Q8_0.gguf"))
    table = sys.stderr if options.json == "-" else sys.stdout
    with contextlib.redirect_stdout(table):
        for name, figure in report["figures"].items():
            print_figure(name, figure)
        print_gains(report["eight_against_one"])
    if options.json:
        with open(options.json, "w") if options.json != "-" else contextlib.nullcontext(sys.stdout) as file:
            json.dump(report, file, indent=1)


def compare(options, wanted, q8_0):
    def tools(model):
        return {"quire": Quire(options.quire, model, options.threads), "llama.cpp": Llama(options.llama, model, options.threads)}

    engines = tools(options.model)
    figures = [name for name in wanted if name in FIGURES]
    gains = Gains({})
    if GAIN in wanted:
        made = make_q8_0(options.llama, options.model, q8_0)
        gains = Gains({os.path.basename(options.model): engines, os.path.basename(made): tools(made)})
    samples = {name: {engine: [] for engine in engines} for name in figures}
    for _ in range(options.rounds):
        for name in figures:
            for engine, tool in engines.items():
                samples[name][engine].append(getattr(tool, FIGURES[name][0])())
        gains.measure()
    report = {"model": os.path.basename(options.model), "threads": options.threads, "rounds": options.rounds, "figures": {}}
    for name in figures:
        both = {engine: summary(values) for engine, values in samples[name].items()}
        ours, theirs = both["quire"]["median"], both["llama.cpp"]["median"]
        report["figures"][name] = {"unit": FIGURES[name][1], "ratio": theirs / ours if name == "first" else ours / theirs, **both}
    report["eight_against_one"] = gains.report()
    return report


if __name__ == "__main__":
    main()
