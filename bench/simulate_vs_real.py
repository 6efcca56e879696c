#!/usr/bin/env python3
"""Does `quire simulate` predict what `quire run --prompts` does? Throughput, median time to first token, hit rate.

usage: simulate_vs_real.py QUIRE MODEL [--seconds 120] [--rounds 5] [--rate R] [--seed N] [--prefix-cache on|off]
       [--keep FOLDER] [-- ENGINE FLAGS]
Each round runs the prompts on the engine at their arrival times, between two calibrations (`bench step --chunk`; the second
is also the next round's first), and simulates the same file with the cells of both: interleaved, because a machine is not
the same from minute to minute. The medians over the rounds are compared; exit code 1 when one is off by more than 10 %.
Without --rate the first calibration picks one that keeps the simulated device busy for about two thirds of the time.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

TOLERANCE = 0.10
CHUNK, CONTEXT, RUNNING, PAGE = 256, 1024, 16, 16


def quire(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def make_prompts(path, rate, seconds, seed):
    """Shared system prompts of a few hundred tokens, a question each; every other one goes on from an earlier prompt."""
    draw = random.Random(seed)
    token = lambda: draw.randrange(100, 40000)  # noqa: E731
    systems = [[token() for _ in range(draw.randrange(120, 300))] for _ in range(4)]
    asked, at, lines = [], 0.0, []
    while True:
        at += draw.expovariate(rate)
        if at > seconds:
            break
        base = draw.choice(asked[-8:]) if asked and draw.random() < 0.4 else draw.choice(systems)
        ids = (base + [token() for _ in range(draw.randrange(15, 80))])[:CONTEXT - 128]
        asked.append(ids)
        lines.append(json.dumps({"ids": ids, "max_tokens": draw.randrange(10, 70), "arrival_s": round(at, 3)}))
    path.write_text("\n".join(lines) + "\n")


def real(program, model, prompts, flags):
    answers = [json.loads(line) for line in
               quire(program, "run", model, "--prompts", prompts, "--ignore-eos", *flags).splitlines()]
    arrivals = [json.loads(line)["arrival_s"] for line in prompts.read_text().splitlines()]
    end = max(arrival + answer["finish_s"] for arrival, answer in zip(arrivals, answers))
    return {"tokens_s": sum(answer["completion_tokens"] for answer in answers) / (end - min(arrivals)),
            "ttft_s": statistics.median(answer["ttft_s"] for answer in answers),
            "hit_rate": sum(answer["cached_tokens"] for answer in answers) / sum(answer["prompt_tokens"] for answer in answers)}


def simulated(program, prompts, calibration, flags):
    report = json.loads(quire(program, "simulate", "--trace", prompts, "--calibration", calibration, "--json", *flags))
    return {"tokens_s": report["tokens_s"], "ttft_s": report["ttft_s"]["p50"], "hit_rate": report["hit_rate"],
            "busy": report["busy_fraction"]}


def calibrate(program, model, flags):
    return json.loads(quire(program, "bench", "step", model, "--batch", "1,2,3,4,8,16", "--context", "128,700", "--chunk",
                            f"1,4,16,32,64,128,{CHUNK}", "--steps", "24", "--json", *flags))["steps"]


def pick_rate(program, prompts, calibration, flags, seconds, seed):
    rate = 0.25
    while rate < 64:
        make_prompts(prompts, rate * 1.25, seconds, seed)
        if simulated(program, prompts, calibration, flags)["busy"] > 0.67:
            break
        rate *= 1.25
    return rate


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quire")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prefix-cache", choices=("on", "off"), default="on")
    parser.add_argument("--keep", help="folder for prompts and calibrations")
    args = parser.parse_args(sys.argv[1:split])
    limits = ["--page-size", PAGE, "--max-running", RUNNING, "--chunk-tokens", CHUNK, "--max-context", CONTEXT,
              "--prefix-cache", args.prefix_cache]
    engine = [*limits, *sys.argv[split + 1:]]
    capacity = json.loads(quire(args.quire, "info", args.model, "--json", *engine))["kv_capacity_tokens"]
    simulator = [*limits, "--kv-tokens", capacity]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(args.keep or scratch)
        prompts, calibration = folder / "prompts.jsonl", folder / "calibration.json"
        cells = calibrate(args.quire, args.model, engine)
        calibration.write_text(json.dumps({"steps": cells}))
        rate = args.rate or pick_rate(args.quire, prompts, calibration, simulator, args.seconds, args.seed)
        make_prompts(prompts, rate, args.seconds, args.seed)
        print(f"{len(prompts.read_text().splitlines())} requests in {args.seconds:.0f} s, {rate:.2f} a second; "
              f"{capacity} tokens of KV", flush=True)
        rounds = []
        for number in range(args.rounds):
            measured = real(args.quire, args.model, prompts, engine)
            before, cells = cells, calibrate(args.quire, args.model, engine)
            calibration.write_text(json.dumps({"steps": before + cells}))
            rounds.append((measured, simulated(args.quire, prompts, calibration, simulator)))
            print(f"round {number + 1}: " + "  ".join(
                f"{name} real {rounds[-1][0][name]:.4g} simulated {rounds[-1][1][name]:.4g}" for name in rounds[-1][0]), flush=True)
    missed = 0
    for name in ("tokens_s", "ttft_s", "hit_rate"):
        measured = statistics.median(both[0][name] for both in rounds)
        predicted = statistics.median(both[1][name] for both in rounds)
        error = abs(predicted - measured) / measured if measured else abs(predicted)
        missed += error > TOLERANCE
        print(f"{name:<9} real {measured:.4g}  simulated {predicted:.4g}  off by {100 * error:.1f} %"
              f"{'' if error <= TOLERANCE else '  MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
