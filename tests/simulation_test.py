#!/usr/bin/env python3
"""A hundred thousand simulated requests with faults, in pools from tiny to roomy: no violation, nobody lost.

usage: simulation_test.py QUIRE_PROGRAM [REQUESTS]
"""
import json
import subprocess
import sys

FAULTS = "aborts=0.05,refusals=0.05,slow=0.05"
# (share of REQUESTS, traffic, requests per second of a hundred thousand, flags). Rates are above what the model serves:
# queues grow, to about the same length whatever REQUESTS is, and pools run full.
RUNS = [
    (0.4, "mix", 60, "output=60", "--page-size 16 --kv-tokens 60000"),
    (0.2, "bursts", 60, "output=60", "--page-size 64 --kv-tokens 20000 --schedule longest_prefix"),
    (0.1, "chat", 20, "output=60", "--page-size 256 --kv-tokens 30000 --schedule priority --cache-eviction priority"),
    (0.1, "agents", 20, "output=60", "--page-size 7 --kv-tokens 9000 --groups full,window:500 --cache-eviction lfu"),
    (0.1, "shared", 20, "output=300", "--page-size 16 --kv-tokens 8000 --max-running 8 --overlap off"),
    (0.1, "mix", 20, "output=200", "--page-size 1 --kv-tokens 6000 --chunk-tokens 100 --cache-eviction fifo --target-itl 40"),
]


def main():
    quire, requests = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100000
    failed = retractions = 0
    for number, (share, kind, rate, traffic, flags) in enumerate(RUNS, 1):
        count = round(share * requests)
        command = [quire, "simulate", "--synthetic", f"{kind}:requests={count},rate={rate * 100000 / max(requests, 100000):g},{traffic},{FAULTS}", "--seed", str(number),
                   *flags.split(), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        report = json.loads(done.stdout) if done.stdout else {"violations": ["no report"]}
        lost = count - sum(report.get(end, 0) for end in ("finished", "refused", "aborted"))
        bad = done.returncode != 0 or report["violations"] or lost
        failed += bool(bad)
        retractions += report.get("retractions", 0)
        print(f"{' '.join(command[1:-1])}\n  {report.get('finished')} finished, {report.get('aborted')} aborted, "
              f"{report.get('refused')} refused, {report.get('steps')} steps, {report.get('retractions')} retractions, "
              f"{report.get('refusals_injected')} refused allocations, hits {report.get('hit_rate', 0):.4f}, "
              f"{len(report['violations'])} violations{'  FAILED' if bad else ''}", flush=True)
        if bad:
            print(done.stderr[-3000:])
            print("to shrink it: add --shrink FILE")
    print(f"{requests} requests, {retractions} retractions, {failed} of {len(RUNS)} runs failed")
    # Pools so small that nobody is retracted would test nothing.
    return 1 if failed or retractions < requests // 1000 else 0


if __name__ == "__main__":
    sys.exit(main())
