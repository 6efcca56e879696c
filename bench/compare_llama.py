#!/usr/bin/env python3
"""Quire and llama.cpp side by side on one machine, model file and thread count: rounds of both, interleaved, medians and ratios.

usage: compare_llama.py QUIRE LLAMA_BIN MODEL.gguf [--threads 2] [--rounds 5] [--only pp512,tg128,...] [--json FILE]

LLAMA_BIN: the folder with llama-bench, llama-batched-bench and first_token of a llama.cpp build.
pp512      prompt tokens/s of a 512-token prompt
tg128      decode tokens/s of 128 tokens from an empty context
tg@4096    decode tokens/s of 32 tokens after 4,096
8x tg64    decode tokens/s of eight sequences together, contexts of 128 to 192
first      seconds from process start to the first token of a short prompt
"""
import argparse
import json
import os
import random
import statistics
import subprocess
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

    def eight(self):
        cells = json.loads(output_of(self.step + ["--batch", "8", "--context", "160", "--steps", "64"]))["steps"]
        return cells[0]["tokens_s"]

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

    def eight(self):
        for _ in range(5):  # now and then the tool ends without having printed its line
            out = output_of([os.path.join(self.folder, "llama-batched-bench"), "-m", self.model, "-t", self.threads, "-c", "2048",
                             "-npp", "128", "-ntg", "64", "-npl", "8", "--output-format", "jsonl"])
            lines = [line for line in out.splitlines() if line.startswith("{")]
            if lines:
                return json.loads(lines[-1])["speed_tg"]
        raise RuntimeError("llama-batched-bench printed no result")

    def first(self):
        return seconds_to_first_byte([os.path.join(self.folder, "first_token"), self.model, self.threads, PROMPT])


FIGURES = {"pp512": ("pp512", "tokens/s"), "tg128": ("tg128", "tokens/s"), "tg@4096": ("tg4096", "tokens/s"),
           "8x tg64": ("eight", "tokens/s"), "first": ("first", "s")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("llama")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(FIGURES))
    parser.add_argument("--json")
    options = parser.parse_args()
    engines = {"quire": Quire(options.quire, options.model, options.threads),
               "llama.cpp": Llama(options.llama, options.model, options.threads)}
    wanted = options.only.split(",")
    samples = {name: {engine: [] for engine in engines} for name in wanted}
    for _ in range(options.rounds):
        for name in wanted:
            for engine, tool in engines.items():
                samples[name][engine].append(getattr(tool, FIGURES[name][0])())
    report = {"model": os.path.basename(options.model), "threads": options.threads, "rounds": options.rounds, "figures": {}}
    for name in wanted:
        ours, theirs = (statistics.median(samples[name][engine]) for engine in engines)
        ratio = theirs / ours if name == "first" else ours / theirs
        report["figures"][name] = {"unit": FIGURES[name][1], "ratio": ratio, **{
            engine: {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for engine, values in samples[name].items()}}
        print(f"{name:10} quire {ours:9.2f} ({min(samples[name]['quire']):.2f}..{max(samples[name]['quire']):.2f})   llama.cpp {theirs:9.2f} "
              f"({min(samples[name]['llama.cpp']):.2f}..{max(samples[name]['llama.cpp']):.2f}) {FIGURES[name][1]:9} {ratio:5.2f}x")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
