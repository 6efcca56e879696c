#!/usr/bin/env python3
"""Hits of the prefix tree against those of a tree that shares only whole pages, simulated: traffic x page size x cache size.

usage: hit_rates.py QUIRE [--seeds N] [--requests N] [-- SIMULATE FLAGS]
Prints a table per cache size, in per cent of the prompt tokens (means over the seeds), and the runs in which whole pages
hit more; exit code 1 when there are any.
"""
import argparse
import json
import statistics
import subprocess
import sys

TRAFFIC, PAGES = ("shared", "chat", "agents", "bursts", "mix"), (16, 64, 256)
CACHES = (8192, 12288, 16384, 24576, 49152, 131072)


def hits(program, traffic, requests, seed, page, tokens, flags):
    command = [program, "simulate", "--synthetic", f"{traffic}:requests={requests},rate=2", "--seed", seed, "--page-size", page,
               "--kv-tokens", tokens, "--max-running", 16, "--audit-every", 0, "--json", *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    report = json.loads(done.stdout)
    return 100 * report["hit_rate"], 100 * report["page_aligned"]["hit_rate"]


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quire")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=2000)
    args = parser.parse_args(sys.argv[1:split])
    lower, runs = [], 0
    for tokens in CACHES:
        print(f"\n{tokens} tokens of KV\n\n| traffic |" + "".join(f" page {page}: Quire | whole pages | least ahead |" for page in PAGES))
        print("|---|" + "---|---|---|" * len(PAGES))
        for traffic in TRAFFIC:
            line = f"| {traffic} |"
            for page in PAGES:
                both = [hits(args.quire, traffic, args.requests, seed, page, tokens, sys.argv[split + 1:])
                        for seed in range(1, args.seeds + 1)]
                runs += len(both)
                lower += [f"{traffic}, seed {seed + 1}, page {page}, {tokens} tokens: {ours:.3f} < {whole:.3f}"
                          for seed, (ours, whole) in enumerate(both) if ours < whole]
                line += f" {statistics.mean(o for o, _ in both):.2f} | {statistics.mean(w for _, w in both):.2f} | "
                line += f"{min(o - w for o, w in both):.2f} |"
            print(line, flush=True)
    print(f"\n{runs} runs, {len(lower)} with fewer hits than whole pages")
    print("\n".join(lower))
    return 1 if lower else 0


if __name__ == "__main__":
    sys.exit(main())
