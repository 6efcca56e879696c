#!/usr/bin/env python3
"""Many streaming clients on a server for a time: no error, every answer equal to the same request alone, and nothing
that grows.

usage: soak.py URL [--clients 200] [--seconds 300] [--prompts 40] [--max-tokens 32] [--leave 0.02] [--pid PID]

First each prompt is asked alone at temperature 0. Then every client asks prompts one after the other, streaming;
a share of them (--leave) drops its connection in mid-answer. Once a second the server's memory, descriptors and pages
are read (memory and descriptors from /proc with --pid). At the end everything must be given back, and the slopes of the
second half are printed. Exit code 1: an error, a wrong answer, requests left over, or growth.
Run the server with --deterministic schedule_invariant.
"""
import argparse
import asyncio
import json
import os
import random
import resource
import sys
import time
import urllib.parse
import urllib.request

WORDS = "river stone lamp garden winter copper ship bread glass mountain paper clock forest salt window thread".split()


def prompts_of(count):
    """Some share a beginning, some do not, lengths differ."""
    shared = "You are a careful assistant. " * 12
    prompts = []
    for i in range(count):
        own = f"Write about {WORDS[i % len(WORDS)]} and {WORDS[(i * 7 + 3) % len(WORDS)]} in {i + 2} words. " * (1 + i % 4)
        prompts.append((shared if i % 2 else "") + own)
    return prompts


class Client:
    """One streaming request over a raw connection: what a browser or an SDK sees, without their threads."""

    def __init__(self, url, max_tokens):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.max_tokens = max_tokens

    async def ask(self, prompt, leave_after=None):
        """The text, or None when it left. Raises on anything that is not a complete stream."""
        body = json.dumps({"messages": [{"role": "user", "content": prompt}], "max_tokens": self.max_tokens, "temperature": 0,
                           "stream": True}).encode()
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n"
                         b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status != 200:
                raise RuntimeError(f"status {status}: {(await reader.read(2000)).decode(errors='replace')}")
            text, count, finish, done = "", 0, None, False
            async for line in reader:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    done = True
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"error in the stream: {event['error']}")
                text += event["choices"][0]["delta"].get("content") or ""
                finish = event["choices"][0]["finish_reason"] or finish
                count += 1
                if leave_after is not None and count >= leave_after:
                    return None
            if not done or finish is None:
                raise RuntimeError(f"the stream ended early after {count} events")
            return text
        finally:
            writer.close()


def fetch(url, path):
    with urllib.request.urlopen(url + path, timeout=120) as answer:
        return answer.read().decode()


def metric(text, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{") or line.startswith(name + " "))


def sample(url, pid):
    text = fetch(url, "/metrics")
    row = {"running": metric(text, "vllm:num_requests_running"), "waiting": metric(text, "vllm:num_requests_waiting"),
           "cache_usage": metric(text, "vllm:kv_cache_usage_perc"), "generated": metric(text, "vllm:generation_tokens_total")}
    if pid:
        with open(f"/proc/{pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        row["memory"] = sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))
        row["descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        row["threads"] = int(fields["Threads"])
    return row


def slope(times, values):
    """Least squares, per second."""
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    return sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values)) / spread if spread else 0.0


class Soak:
    def __init__(self, arguments):
        self.arguments = arguments
        self.client = Client(arguments.url, arguments.max_tokens)
        self.prompts = prompts_of(arguments.prompts)
        self.expected, self.errors, self.wrong, self.samples = [], [], [], []
        self.answers = self.left = 0

    async def one_client(self, number, end):
        draw = random.Random(number)
        await asyncio.sleep(draw.random() * 2)
        while time.monotonic() < end:
            place = draw.randrange(len(self.prompts))
            leave = draw.randint(1, self.arguments.max_tokens) if draw.random() < self.arguments.leave else None
            try:
                text = await self.client.ask(self.prompts[place], leave)
            except (OSError, RuntimeError, ValueError, asyncio.IncompleteReadError) as problem:
                self.errors.append(f"client {number}: {problem!r}")
                await asyncio.sleep(0.2)
                continue
            if text is None:
                self.left += 1
                continue
            self.answers += 1
            if text != self.expected[place]:
                self.wrong.append({"prompt": place, "expected": self.expected[place], "got": text})

    async def watch(self, end):
        loop = asyncio.get_running_loop()
        begin = time.monotonic()
        while time.monotonic() < end:
            row = await loop.run_in_executor(None, sample, self.arguments.url, self.arguments.pid)
            self.samples.append((time.monotonic() - begin, row))
            await asyncio.sleep(1)

    async def run(self):
        for prompt in self.prompts:
            self.expected.append(await self.client.ask(prompt))
        end = time.monotonic() + self.arguments.seconds
        begin = time.monotonic()
        await asyncio.gather(self.watch(end), *(self.one_client(number, end) for number in range(self.arguments.clients)))
        self.seconds = time.monotonic() - begin
        for _ in range(200):
            last = sample(self.arguments.url, self.arguments.pid)
            if last["running"] + last["waiting"] == 0:
                break
            await asyncio.sleep(0.1)
        return self.report(last)

    def report(self, last):
        half = [(at, row) for at, row in self.samples if at >= self.samples[-1][0] / 2]
        times = [at for at, _ in half]
        slopes = {name: slope(times, [row[name] for _, row in half]) for name in half[0][1] if name not in ("generated", "running", "waiting")}
        middle = half[0][1]
        grown = {name: last[name] - middle[name] for name in ("memory", "descriptors", "threads") if name in last}
        report = {"clients": self.arguments.clients, "seconds": round(self.seconds, 1), "answers": self.answers, "left": self.left,
                  "errors": len(self.errors), "first_errors": self.errors[:5], "wrong": len(self.wrong), "first_wrong": self.wrong[:2],
                  "tokens_s": round((self.samples[-1][1]["generated"] - self.samples[0][1]["generated"]) /
                                    max(1e-9, self.samples[-1][0] - self.samples[0][0]), 1),
                  "left_over": last["running"] + last["waiting"], "slope_per_s": slopes, "grown_since_middle": grown, "at_end": last}
        # Descriptors come and go with the clients; more at the end, when all have left, is a leak. Memory may grow by what
        # an allocator keeps: 64 KiB/s would fill 5 GB in a day.
        report["passed"] = (not self.errors and not self.wrong and self.answers > 0 and report["left_over"] == 0 and
                            grown.get("descriptors", 0) <= 0 and grown.get("threads", 0) <= 0 and slopes.get("memory", 0.0) < 65536)
        return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--leave", type=float, default=0.02)
    parser.add_argument("--pid", type=int, default=0)
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, arguments.clients * 2 + 64)), hard))
    report = asyncio.run(Soak(arguments).run())
    print(json.dumps(report, indent=1))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
