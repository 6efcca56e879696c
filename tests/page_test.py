#!/usr/bin/env python3
"""The web page of `quire serve` in a headless Chromium: what it shows is what /v1/kv says at the same version.

usage: page_test.py QUIRE_PROGRAM [test ...]     needs chromium (scripts/deps/ci.txt) and the model (scripts/deps/fetch.sh)
QUIRE_SCREENSHOTS=FOLDER keeps pictures of the page: light, dark, and 390 pixels wide.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import time
import unittest

from browser import Browser, find_chromium
from serving import Server

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / ".deps/models/SmolLM2-135M-Instruct.Q4_1.gguf"
QUIRE = "quire"
# Small enough that a test's load fills the cache, evicts, and has requests waiting.
ENGINE = ("--page-size", 8, "--kv-memory", "24M", "--max-running", 4, "--max-context", 2048)

# One moment of the page and of /v1/kv with the same version: nothing of the page runs between the comparison
# of the versions and what is read behind it.
SAME_MOMENT = """(async (read) => {
  for (let tries = 0; tries < 400; ++tries) {
    const kv = await (await fetch('/v1/kv')).json();
    if (document.getElementById('maps').dataset.version === String(kv.version)) return {kv, page: read()};
    await new Promise((resolve) => setTimeout(resolve, 15));
  }
  return null;
})"""
# The colour in the middle of every cell, per group.
CELLS = """() => Object.fromEntries([...document.querySelectorAll('canvas')].map((canvas) => {
  const {cell, columns, pages} = canvas.dataset, ratio = canvas.width / (cell * columns);
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = [];
  for (let id = 0; id < pages; ++id) {
    const x = Math.floor(((id % columns) + 0.5) * cell * ratio), y = Math.floor((Math.floor(id / columns) + 0.5) * cell * ratio);
    const at = 4 * (y * canvas.width + x);
    colours.push(`rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`);
  }
  return [canvas.dataset.group, colours];
}))"""
CARD = """() => { const card = document.getElementById('card');
  return {...card.dataset, hidden: card.hidden, text: card.innerText, swatch: getComputedStyle(card.querySelector('i')).backgroundColor}; }"""
# What the legend says each colour means.
LEGEND = """Object.fromEntries([...document.querySelectorAll('#legend span')].map((item) =>
  [item.dataset.use, {colour: getComputedStyle(item.querySelector('i')).backgroundColor, pages: item.querySelector('b').textContent}]))"""


def rows_of(group):
    """use, references, node, requests, ids of every page of a group of /v1/kv."""
    rows = [["free", 0, 0, 0, []] for _ in range(group["pages"])]
    for row in group["page_list"]:
        rows[row[0]] = row[1:]
    return rows


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, MODEL, *ENGINE)
        cls.browser = Browser()
        cls.pool = concurrent.futures.ThreadPoolExecutor(16)

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()
        cls.server.__exit__()
        cls.pool.shutdown()

    def open(self, url=None, **how):
        page = self.browser.open((url or self.server.url) + "/", **how)
        self.addCleanup(page.close)
        page.wait("document.getElementById('maps').dataset.version")
        return page

    def start_load(self, requests, tokens, seed=1):
        """Requests that share beginnings, on their way while the test goes on."""
        words = random.Random(seed).choices("river stone light paper horse music north water".split(), k=120)
        futures = []
        for number in range(requests):
            prompt = " ".join(words[:30 + 30 * (number % 3)]) + f" {number} {seed}"
            futures.append(self.pool.submit(self.server.post, "/v1/completions", {
                "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}))
        return futures

    def moment(self, page, read):
        moment = page.evaluate(f"{SAME_MOMENT}({read})")
        self.assertIsNotNone(moment, "the page and /v1/kv had no version in common")
        return moment

    def check_cells(self, page):
        """Every cell's colour is the legend's for what /v1/kv says of the page. Returns the uses met."""
        moment = self.moment(page, f"() => ({{cells: ({CELLS})(), legend: {LEGEND}}})")
        legend = moment["page"]["legend"]
        colours = {use: item["colour"] for use, item in legend.items()}
        self.assertEqual(len(set(colours.values())), len(colours), "two uses look alike")
        met = set()
        self.assertEqual({group["name"] for group in moment["kv"]["groups"]}, set(moment["page"]["cells"]))
        for group in moment["kv"]["groups"]:
            rows = rows_of(group)
            self.assertEqual(moment["page"]["cells"][group["name"]], [colours[row[0]] for row in rows])
            met.update(row[0] for row in rows)
        for use, item in legend.items():
            pages = sum(group["use"][use] for group in moment["kv"]["groups"])
            self.assertEqual(int(item["pages"].replace(",", "")), pages, use)
        return met

    def test_cells_are_what_kv_says(self):
        page = self.open()
        load = self.start_load(8, 60)
        met = set()
        while any(not future.done() for future in load):
            met |= self.check_cells(page)
        for future in load:
            self.assertEqual(future.result()["usage"]["completion_tokens"], 60)
        met |= self.check_cells(page)
        self.assertEqual(met, {"free", "tree", "request", "shared", "reserved"})
        self.assertEqual(page.problems, [])

    def cell_place(self, page, group, number):
        return page.evaluate(f"""(() => {{ const c = document.querySelector('canvas[data-group="{group}"]');
          const box = c.getBoundingClientRect(), n = {number};
          return [box.x + (n % c.dataset.columns + 0.5) * c.dataset.cell, box.y + (Math.floor(n / c.dataset.columns) + 0.5) * c.dataset.cell]; }})()""")

    def check_card(self, moment, number):
        """The card says what /v1/kv says of the page, in its data and in its words."""
        card, kv = moment["page"], moment["kv"]
        group = next(group for group in kv["groups"] if group["name"] == card["group"])
        use, references, node, requests, ids = rows_of(group)[number]
        self.assertFalse(card["hidden"])
        self.assertEqual((int(card["page"]), card["use"], int(card["references"]), int(card["node"]), int(card["requests"]),
                          card["version"]), (number, use, references, node, requests, str(kv["version"])))
        self.assertEqual(card["ids"], ",".join(map(str, ids)))
        text = card["text"]
        self.assertIn(f"Page {number} of {group['name']}", text)
        for request in ids:
            self.assertRegex(text, rf"\b{request}\b")
        if node != 0:
            known = {entry["id"]: entry for entry in kv["tree"]["list"]}[node]
            end = known["begin"] + known["tokens"]
            self.assertIn(f"{node}: tokens {known['begin']:,} to {end:,}", text)
        if use not in ("reserved", "elsewhere"):
            self.assertRegex(text, rf"References\s+{references}\b")
        return use

    def test_pointing_at_a_page_says_what_kv_says(self):
        page = self.open(height=1000)
        choose = random.Random(3)

        def point_at_one(met):
            """At a page of a use that was not met yet, where there is one."""
            group = choose.choice(self.server.get("/v1/kv")["groups"])
            uses = collections.defaultdict(list)
            for number, row in enumerate(rows_of(group)):
                uses[row[0]].append(number)
            use = choose.choice(sorted(uses.keys() - met) or sorted(uses))
            number = choose.choice(uses[use])
            page.move(*self.cell_place(page, group["name"], number))
            met.add(self.check_card(self.moment(page, CARD), number))

        # What earlier loads left in the tree may hold every page that is not reserved: no page need be free then.
        expected = {row[0] for group in self.server.get("/v1/kv")["groups"] for row in rows_of(group)}
        met = set()
        for _ in range(20):
            point_at_one(met)
        load = self.start_load(8, 70, seed=2)
        while any(not future.done() for future in load):
            point_at_one(met)
        for future in load:
            future.result()
        self.assertLessEqual(expected | {"tree", "request", "shared", "reserved"}, met)
        page.move(2, 2)
        page.wait("document.getElementById('card').hidden")

    def test_keyboard(self):
        page = self.open()
        self.start_load(1, 4, seed=4)[0].result()
        page.evaluate("document.querySelector('canvas').focus()")
        columns, pages = (int(value) for value in page.evaluate("(({columns, pages}) => [columns, pages])(document.querySelector('canvas').dataset)"))
        at = 0
        for key, to in (("Home", 0), ("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowLeft", columns), ("ArrowUp", 0),
                        ("ArrowUp", 0), ("ArrowLeft", 0), ("End", pages - 1), ("ArrowRight", pages - 1), ("Home", 0), ("ArrowRight", 1)):
            page.press(key)
            at = to
            self.assertEqual(int(page.evaluate("document.getElementById('card').dataset.page")), at, key)
        self.check_card(self.moment(page, CARD), at)
        # What a screen reader says is what stands in the card.
        self.assertIn(f"Page {at} of", page.evaluate("document.getElementById('card-spoken').textContent"))
        page.press("Escape")
        self.assertTrue(page.evaluate("document.getElementById('card').hidden"))

    def send(self, page, text):
        before = page.evaluate("document.querySelectorAll('article').length")
        page.evaluate("document.getElementById('prompt').focus()")
        page.type(text)
        page.press("Enter", "\r")
        page.wait(f"document.querySelectorAll('article').length === {before + 2}")

    def figures(self, page):
        page.wait("!document.querySelector('article.busy') && document.querySelector('article:last-child .figures span')", 120)
        return page.evaluate("""Object.fromEntries([...document.querySelectorAll('article:last-child .figures span')].map(
          (span) => [span.dataset.fact, span.textContent]))""")

    def test_chat_and_its_figures(self):
        page = self.open()
        page.click("#settings-button")
        page.evaluate("document.getElementById('temperature').value = '0'; document.getElementById('max_tokens').value = '24'; document.getElementById('system').value = 'You are brief.'")
        question = "Name the capital of France, in one sentence."
        self.send(page, question)
        facts = self.figures(page)
        text = page.evaluate("document.querySelector('article:last-child .text').innerText")
        messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": question}]
        same = self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 24, "temperature": 0})
        self.assertEqual(text.split(), same["choices"][0]["message"]["content"].split())
        usage = same["usage"]
        self.assertEqual(facts["prompt"], f"{usage['prompt_tokens']} prompt tokens")
        self.assertEqual(facts["tokens"], f"{usage['completion_tokens']} tokens")
        self.assertRegex(facts["rate"], r"^[\d,.]+ tok/s$")
        self.assertRegex(facts["first"], r"^first token after [\d.]+ m?s$")
        self.assertIn("miss", facts)  # nothing like it was there before
        # The second question goes on from the first: what both begin with comes from the cache.
        self.send(page, "And of Italy?")
        facts = self.figures(page)
        cached = int(re.match(r"([\d,]+) cached", facts["cached"])[1].replace(",", ""))
        self.assertGreaterEqual(cached, usage["prompt_tokens"] - 2)
        self.assertEqual(page.problems, [])

    def test_stop_ends_the_request(self):
        page = self.open()
        page.click("#settings-button")
        page.evaluate("document.getElementById('plain').checked = true; document.getElementById('max_tokens').value = '900'; document.getElementById('temperature').value = '0'")
        self.send(page, "Once upon a time")
        page.wait("document.querySelector('article:last-child .text').innerText.length > 20", 60)
        self.assertEqual(page.evaluate("document.getElementById('send').textContent"), "Stop")
        page.click("#send")
        self.assertEqual(self.figures(page)["finish"], "stopped by you")
        deadline = time.monotonic() + 20
        while self.server.get("/v1/kv")["queue"]["running"] > 0:
            self.assertLess(time.monotonic(), deadline, "the request still runs")
            time.sleep(0.05)
        self.assertEqual(page.problems, [])

    def test_errors_are_shown(self):
        page = self.open()
        page.click("#settings-button")
        page.evaluate("document.getElementById('temperature').value = '9'")
        self.send(page, "Hello")
        page.wait("document.querySelector('.problem')")
        self.assertIn("temperature", page.evaluate("document.querySelector('.problem').innerText"))

    def test_tables_are_what_the_server_says(self):
        page = self.open()
        load = self.start_load(7, 120, seed=5)
        # All of them: one that comes to wait takes no page, so the map's version is the same before and after.
        page.wait("document.querySelectorAll('#request-rows tr').length === 7")
        moment = self.moment(page, """() => ({
          queue: document.getElementById('queue').textContent,
          requests: [...document.querySelectorAll('#request-rows tr')].map((row) => [...row.children].slice(0, 3).map((cell) => cell.textContent)),
          ledger: [...document.querySelectorAll('#ledger .bar span')].map((name) => name.textContent),
          misses: document.querySelectorAll('#misses .bar').length})""")
        shown, kv = moment["page"], moment["kv"]
        self.assertEqual(shown["ledger"], [line["owner"] for line in sorted(kv["ledger"], key=lambda line: -line["bytes"])])
        self.assertEqual(shown["misses"], sum(1 for count in kv["why_miss"].values() if count > 0))
        self.assertTrue(all(len(row) == 3 for row in shown["requests"]))
        self.assertEqual([row[0] for row in shown["requests"]], [str(request["id"]) for request in kv["requests"]])
        self.assertEqual([row[1] for row in shown["requests"]], [request["state"] for request in kv["requests"]])
        self.assertIn("4 of 4 places taken", shown["queue"])
        page.wait("document.querySelectorAll('#charts path').length > 0")
        for future in load:
            future.result()
        report = self.server.get("/v1/backends")
        page.wait("document.querySelector('#backend-calls details')")
        calls = page.evaluate("[...document.querySelectorAll('#backend-calls summary')].map((line) => [line.children[0].textContent, line.children[1].textContent])")
        self.assertEqual(calls, [[call["call"], call["choice"]] for call in report["calls"]])
        rows = page.evaluate("[...document.querySelectorAll('#backend-rows tbody code')].map((name) => name.textContent)")
        self.assertEqual(rows, [row["name"] for row in report["rows"]])

    def test_light_dark_and_phone(self):
        self.start_load(4, 10, seed=6)[3].result()
        looks = {"light": {}, "dark": {"dark": True}, "phone": {"width": 390, "height": 844, "ratio": 2, "touch": True}}
        grounds = {}
        for name, how in looks.items():
            page = self.open(**how)
            self.check_cells(page)
            grounds[name] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth - innerWidth"), 0, f"{name} scrolls sideways")
            folder = os.environ.get("QUIRE_SCREENSHOTS")
            if folder:
                self.send(page, "What is the capital of France?")
                self.figures(page)
                page.screenshot(f"{folder}/{name}.png")
            self.assertEqual(page.problems, [])
            self.assertEqual(page.asked, [f"127.0.0.1:{self.server.port}"])  # nothing from outside
        self.assertNotEqual(grounds["light"], grounds["dark"])
        # The button goes from the system's colours to light and to dark, and the map follows.
        page = self.open(dark=True)
        page.click("#theme")
        self.assertEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), grounds["light"])
        self.check_cells(page)
        page.evaluate("localStorage.clear()")

    def test_a_key_is_asked_for(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("secret-of-the-test\n")
            file.flush()
            with Server(QUIRE, MODEL, *ENGINE, "--api-key-file", file.name, key="secret-of-the-test") as server:
                page = self.browser.open(server.url + "/")
                self.addCleanup(page.close)
                page.wait("document.getElementById('key-dialog').open")
                page.type("secret-of-the-test")
                page.press("Enter", "\r")
                page.wait("document.getElementById('maps').dataset.version")
                self.assertEqual(page.evaluate("document.getElementById('maps').dataset.version"), str(server.get("/v1/kv")["version"]))


if __name__ == "__main__":
    QUIRE = sys.argv.pop(1)
    if find_chromium() is None:
        sys.exit("no chromium here: scripts/deps/apt.sh ci.txt")
    if not MODEL.exists():
        sys.exit(f"{MODEL} was not fetched: scripts/deps/fetch.sh")
    unittest.main(verbosity=2)
