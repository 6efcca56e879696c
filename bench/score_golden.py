#!/usr/bin/env python3
"""Log-probabilities of a model against stored ones (golden/smollm2/README.md says the format and the tolerances).

usage: bench/score_golden.py QUIRE MODEL FOLDER [OPTION...]
FOLDER holds *.json with ids, logprobs and top5; the OPTIONs go to `quire score` (--device cuda). The bounds are
those of activations rounded to 8 bits of mantissa or integer, which bf16 and 8-bit products are. Exit code 1 when
one is passed, quire's own where it fails.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

MEAN, LARGEST, BIAS, KL_MEAN, KL_LARGEST = 0.08, 0.6, 0.01, 0.006, 0.05
TOP = 100  # of the distribution, so that the golden's five best are among them


def divergence(best, ours):
    """Of the five best tokens and the rest as a sixth class: a lower bound of the whole divergence."""
    kl = rest = our_rest = 0.0
    for token, golden in zip(best["ids"], best["logprobs"]):
        # One that is not among our TOP is less likely than all of them.
        our = ours.get(token, min(ours.values()))
        kl += math.exp(golden) * (golden - our)
        rest += math.exp(golden)
        our_rest += math.exp(our)
    rest, our_rest = 1 - rest, max(1 - our_rest, 1e-9)
    return kl + rest * math.log(rest / our_rest) if rest > 1e-5 else kl


def score(command, ids):
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
        file.write(",".join(map(str, ids)))
        file.flush()
        done = subprocess.run([*command, "--ids-file", file.name, "--top", str(TOP), "--json"], stdout=subprocess.PIPE)
    if done.returncode != 0:  # it has said why
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    quire, model, folder, *options = sys.argv[1:]
    texts = sorted(pathlib.Path(folder).glob("*.json"))
    if not texts:
        sys.exit(f"no *.json in {folder}")
    failed = False
    for path in texts:
        golden = json.loads(path.read_text())
        scored = score([quire, "score", model, *options], golden["ids"])
        if len(golden["logprobs"]) != len(golden["ids"]) - 1 or not golden["top5"]:
            sys.exit(f"{path}: wanted are a log-probability for every token but the first, and some of top5")
        differences = [ours - want for ours, want in zip(scored["logprobs"][1:], golden["logprobs"])]
        bias = sum(differences) / len(differences)
        sizes = [abs(d) for d in differences]
        mean, largest = sum(sizes) / len(sizes), max(sizes)
        kls = [divergence(best, dict(scored["top"][best["position"]])) for best in golden["top5"]]
        kl_mean, kl_largest = sum(kls) / len(kls), max(kls)
        good = (abs(bias) <= BIAS and mean <= MEAN and largest <= LARGEST and kl_mean <= KL_MEAN
                and kl_largest <= KL_LARGEST)
        failed = failed or not good
        print(f"{path.stem}: {len(golden['ids'])} tokens, difference of log-probability: signed mean {bias:+.1e}, "
              f"mean {mean:.1e}, largest {largest:.1e}; KL mean {kl_mean:.1e}, largest {kl_largest:.1e}: "
              f"{'within' if good else 'NOT within'} the bounds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
