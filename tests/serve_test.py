#!/usr/bin/env python3
"""The server from outside, with the real model: OpenAI's own client, plain HTTP, and every field of /openapi.json
with values of every type.

usage: serve_test.py QUIRE_PROGRAM
Needs the fetched model (scripts/deps/fetch.sh) and, for the client's and the schemas' tests, the packages of
scripts/deps/test_venv.sh; what is missing is skipped and said.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

try:
    import jsonschema
    import openai
except ImportError:
    sys.exit("the clients are not installed: run scripts/deps/test_venv.sh, then this with .deps/test-venv/bin/python")

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOLLM2 = ROOT / ".deps/models/SmolLM2-135M-Instruct.Q4_1.gguf"
QUIRE = "quire"
NAME = "smollm2"
CHAT = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
FLAGS = ("--served-model-name", NAME, "--deterministic", "schedule_invariant", "--max-context", "1024", "--max-running", "8",
         "--kv-memory", "256M")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server process; ends with the block."""

    def __init__(self, model, *flags):
        self.port = free_port()
        self.log = tempfile.TemporaryFile("w+")
        command = [QUIRE, "serve", str(model), "--host", "127.0.0.1", "--port", str(self.port), *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        end = time.monotonic() + 120
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.log.seek(0)
                raise RuntimeError(f"{command} did not start:\n{self.log.read()}")
            time.sleep(0.05)

    def ready(self):
        try:
            return self.get("/ready")[0] == 200
        except OSError:
            return False

    def get(self, path):
        return self.send("GET", path, None)

    def post(self, path, body):
        """Body: a value or bytes. Returns status and the answer's JSON."""
        return self.send("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def send(self, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body, {"content-type": "application/json"} if body is not None else {})
            answer = connection.getresponse()
            text = answer.read()
            self.headers = dict((name.lower(), value) for name, value in answer.getheaders())
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def events(self, path, body):
        """The events of a stream: data as JSON, "[DONE]" as it is."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        events = []
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
            for line in answer:
                if line.startswith(b"data: "):
                    data = line[6:].strip().decode("utf-8")
                    events.append(data if data == "[DONE]" else json.loads(data))
        return events

    def client(self):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=300)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        return self.process.returncode


# Calls in the form of Hermes and Qwen, on top of the model's own turns.
TOOL_TEMPLATE = """{%- if tools %}{{- "<|im_start|>system\\nTools:\\n" }}{%- for tool in tools %}{{- tool | tojson ~ "\\n" }}
{%- endfor %}{{- 'Call one with <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{{- "<|im_start|>" ~ message.role ~ "\\n" ~ message.content }}
{%- for call in message.tool_calls or [] %}{{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments | tojson ~ "}\\n</tool_call>" }}{%- endfor %}{{- "<|im_end|>\\n" }}{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}"""


def with_template(source, template, target):
    """A copy of a GGUF file with another chat template. The new one is filled up so that what follows moves by a
    multiple of the alignment of the tensors."""
    data = source.read_bytes()
    key = b"tokenizer.chat_template"
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    kind, length = struct.unpack_from("<IQ", data, at)
    assert kind == 8, kind
    text = template.encode() + b"{##}"
    text = text[:-2] + b" " * ((length - len(text)) % 32) + text[-2:]
    target.write_bytes(data[:at + 4] + struct.pack("<Q", len(text)) + text + data[at + 12 + length:])


server = None


def setUpModule():
    global server
    if not SMOLLM2.exists():
        sys.exit("the model is not fetched: run scripts/deps/fetch.sh")
    server = Server(SMOLLM2, *FLAGS)


def tearDownModule():
    if server is not None:
        code = server.stop()
        assert code == 0, f"the server ended with {code}"


def joined_chat(events, index=0):
    text, finish, logprobs = "", None, []
    for event in events:
        if event == "[DONE]" or not event["choices"] or event["choices"][0]["index"] != index:
            continue
        choice = event["choices"][0]
        text += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
        logprobs += choice["logprobs"]["content"] if choice["logprobs"] else []
    return text, finish, logprobs


class Plain(unittest.TestCase):
    """Standard library only."""

    def fine(self, path, body):
        status, answer = server.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def wrong(self, path, body, status=400):
        got, answer = server.post(path, body)
        self.assertEqual(got, status, answer)
        self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
        return answer["error"]

    def test_models(self):
        status, answer = server.get("/v1/models")
        self.assertEqual((status, answer["object"], [model["id"] for model in answer["data"]]), (200, "list", [NAME]))
        self.assertEqual(server.get(f"/v1/models/{NAME}")[1]["id"], NAME)
        self.assertEqual(server.get("/v1/models/other")[0], 404)
        self.assertTrue(server.headers.get("x-request-id"))

    def test_completion_is_what_run_says(self):
        prompt = "The capital of France is"
        out = subprocess.run([QUIRE, "run", SMOLLM2, "-p", prompt, "--max-tokens", "12", "--temperature", "0", "--json"],
                             capture_output=True, text=True, timeout=300)
        expected = json.loads(out.stdout)
        answer = self.fine("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0})
        self.assertEqual(answer["choices"][0]["text"], expected["text"])
        self.assertEqual(answer["usage"]["prompt_tokens"], expected["prompt_tokens"])
        self.assertEqual(answer["usage"]["completion_tokens"], expected["completion_tokens"])
        ids = self.fine("/tokenize", {"prompt": prompt})["tokens"]
        self.assertEqual(self.fine("/v1/completions", {"prompt": ids, "max_tokens": 12, "temperature": 0})["choices"][0]["text"],
                         expected["text"])

    def test_streamed_chat_is_the_whole_one(self):
        body = {"messages": CHAT, "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 2}
        whole = self.fine("/v1/chat/completions", body)
        events = server.events("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
        text, finish, logprobs = joined_chat(events)
        choice = whole["choices"][0]
        self.assertIn("Paris", text)
        self.assertEqual((text, finish, logprobs),
                         (choice["message"]["content"], choice["finish_reason"], choice["logprobs"]["content"]))
        self.assertEqual(events[-1], "[DONE]")
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(events[-2]["usage"][key], whole["usage"][key])
        self.assertEqual(len(logprobs), whole["usage"]["completion_tokens"])
        for token in logprobs:
            self.assertLessEqual(token["logprob"], 0)
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertEqual(token["top_logprobs"][0]["bytes"], token["bytes"])  # greedy: the most likely one
            self.assertEqual(bytes(token["bytes"]).decode("utf-8", "replace"), token["token"])

    def test_streamed_completion_is_the_whole_one(self):
        body = {"prompt": ["One, two,", "Hello"], "n": 2, "max_tokens": 6, "temperature": 0.8, "seed": 5, "logprobs": 1}
        whole = self.fine("/v1/completions", body)
        texts = {}
        for event in server.events("/v1/completions", {**body, "stream": True})[:-1]:
            choice = event["choices"][0]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        self.assertEqual(texts, {choice["index"]: choice["text"] for choice in whole["choices"]})
        self.assertNotEqual(texts[0], texts[1])  # choices of one seed differ
        self.assertEqual(whole["usage"]["completion_tokens"], 24)

    def test_streamed_response_is_the_whole_one(self):
        body = {"input": CHAT[0]["content"], "instructions": "Be brief.", "max_output_tokens": 10, "temperature": 0}
        whole = self.fine("/v1/responses", body)
        events = server.events("/v1/responses", {**body, "stream": True})
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        last = events[-1]["response"]
        self.assertEqual(last["output"][0]["content"], whole["output"][0]["content"])
        self.assertEqual("".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"),
                         whole["output"][0]["content"][0]["text"])

    def test_sampling_fields_do_what_they_say(self):
        ask = {"prompt": "The sky is", "max_tokens": 4, "temperature": 0}
        token = self.fine("/tokenize", {"prompt": " green"})["tokens"]
        forced = self.fine("/v1/completions", {**ask, "logit_bias": {str(token[0]): 100}})
        self.assertEqual(forced["choices"][0]["text"], " green" * 4)
        same = [self.fine("/v1/completions", {**ask, "temperature": 1.5, "max_tokens": 8, "seed": 11})["choices"][0]["text"]
                for _ in range(2)]
        self.assertEqual(same[0], same[1])
        unseeded = {self.fine("/v1/completions", {**ask, "temperature": 2, "max_tokens": 8})["choices"][0]["text"] for _ in range(4)}
        self.assertGreater(len(unseeded), 1)
        free = self.fine("/v1/completions", {**ask, "max_tokens": 16})["choices"][0]
        self.assertEqual(free["finish_reason"], "length")
        stop = free["text"][5:8]
        stopped = self.fine("/v1/completions", {**ask, "max_tokens": 16, "stop": [stop]})["choices"][0]
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["text"], free["text"][:free["text"].index(stop)])

    def test_echo_scores_the_prompt_as_the_command_does(self):
        text = "Paris is the capital of France."
        out = subprocess.run([QUIRE, "score", SMOLLM2, "--text", text, "--json"], capture_output=True, text=True, timeout=300)
        expected = json.loads(out.stdout)["logprobs"]
        choice = self.fine("/v1/completions", {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0})["choices"][0]
        self.assertEqual(choice["text"], text)
        got = choice["logprobs"]["token_logprobs"]
        self.assertIsNone(got[0])
        self.assertEqual(len(got), len(expected))
        for ours, theirs in zip(got[1:], expected[1:]):
            self.assertAlmostEqual(ours, theirs, delta=1e-4)
        offsets = choice["logprobs"]["text_offset"]
        for offset, token in zip(offsets, choice["logprobs"]["tokens"]):
            self.assertEqual(text[offset:offset + len(token)], token)
        both = self.fine("/v1/completions", {"prompt": text, "echo": True, "logprobs": 0, "max_tokens": 3, "temperature": 0})
        alone = self.fine("/v1/completions", {"prompt": text, "logprobs": 0, "max_tokens": 3, "temperature": 0})
        self.assertEqual(both["choices"][0]["text"], text + alone["choices"][0]["text"])
        self.assertEqual(both["choices"][0]["logprobs"]["token_logprobs"][len(got):],
                         alone["choices"][0]["logprobs"]["token_logprobs"])

    def test_cached_tokens_and_why(self):
        prompt = f"Once upon a time in a land far away {time.time()} there lived a very old king who had three sons. " * 2
        first = self.fine("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        again = self.fine("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 30)
        self.assertLess(first["usage"]["prompt_tokens_details"]["cached_tokens"], 30)
        self.assertTrue(first["quire"][0]["cache_miss"])

    def test_tokenize_and_back(self):
        for text in ("Hello, world!", "naïve café — 日本語 🙂", "", " \n\t", "<|im_end|>"):
            tokens = self.fine("/tokenize", {"prompt": text})
            self.assertEqual(tokens["count"], len(tokens["tokens"]))
            self.assertEqual(self.fine("/detokenize", {"tokens": tokens["tokens"]})["prompt"], text)
        chat = self.fine("/tokenize", {"messages": CHAT})
        self.assertEqual(chat["count"], self.fine("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1})["usage"]["prompt_tokens"])

    def test_too_long_says_so(self):
        error = self.wrong("/v1/chat/completions", {"messages": [{"role": "user", "content": "many words " * 2000}]})
        self.assertEqual(error["code"], "context_length_exceeded")
        self.assertIn("1024", error["message"])

    def test_values_of_the_engine(self):
        self.assertEqual(self.wrong("/v1/completions", {"prompt": "a", "logit_bias": {"999999": 1}})["param"], "logit_bias")
        self.assertEqual(self.wrong("/v1/completions", {"prompt": [999999]})["param"], "prompt")
        self.assertEqual(self.wrong("/v1/chat/completions", {"model": "gpt-5", "messages": CHAT}, 404)["code"], "model_not_found")
        error = self.wrong("/v1/chat/completions", {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]})
        self.assertEqual(error["param"], "tools")  # this model's template has no form for calls

    def test_no_field_of_any_type_breaks_the_server(self):
        """Every field of every request schema, with a value of each type: 200 or 400 that names the field."""
        document = server.get("/openapi.json")[1]
        least = {"/v1/completions": {"prompt": "a", "max_tokens": 1}, "/v1/chat/completions": {"messages": CHAT, "max_tokens": 1},
                 "/v1/responses": {"input": "a", "max_output_tokens": 1}, "/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]}}
        values = (True, -1, 0, 3, 0.5, 1e300, -1e300, 2**63, 10**30, "x", "", "\x00", "é" * 300, [], [[]], [{}], ["x"], [1], {}, {"x": 1},
                  {"type": "x"}, [None], None)
        cases = []
        for path, body in least.items():
            reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            for field in document["components"]["schemas"][reference.split("/")[-1]]["properties"]:
                rest = {key: value for key, value in body.items() if key != "max_tokens"} if field == "max_completion_tokens" else body
                # Two fields that ask for more than one short answer are met in other tests.
                cases += [(path, field, {**rest, field: value}) for value in values if (field, value) not in (("n", 3), ("stream", True))]

        def ask(case):
            path, _, body = case
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            connection.close()
            return case, (answer.status, json.loads(text))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(ask, cases))
        self.assertGreater(len(results), 1500)
        for (path, field, body), (status, answer) in results:
            self.assertIn(status, (200, 400, 404), (path, field, body[field], answer))
            if status != 200:
                self.assertTrue(answer["error"]["message"])
                if answer["error"]["param"] is not None:
                    self.assertTrue(answer["error"]["param"].startswith(field) or body[field] in ("", [], None),
                                    (path, field, body[field], answer))

    def test_broken_bodies(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"):
            for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt":"\xff"}', b'{"a":' * 100000, b"[" * 1000000,
                         b'{"prompt":1e999}', b'{"messages":"' + b"\\u0000" * 10, b'{"prompt": "a", "prompt"}', b"\x00" * 100):
                status, answer = server.post(path, body)
                self.assertEqual(status, 400, (path, body[:40]))
                self.assertEqual(answer["error"]["type"], "invalid_request_error")
        self.fine("/v1/completions", {"prompt": "a", "max_tokens": 1})

    def test_a_client_that_leaves_gives_everything_back(self):
        for stream in (True, False):
            with socket.create_connection(("127.0.0.1", server.port)) as gone:
                body = json.dumps({"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": stream}).encode()
                gone.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                time.sleep(0.3)
            end = time.monotonic() + 20
            while self.running() > 0:
                self.assertLess(time.monotonic(), end, "the request of a client that left still runs")
                time.sleep(0.05)

    def running(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting")))

    def test_answers_do_not_depend_on_the_neighbours(self):
        bodies = [{"messages": [{"role": "user", "content": f"Tell me about the number {i}."}], "max_tokens": 16, "temperature": 0}
                  for i in range(8)]
        alone = [self.fine("/v1/chat/completions", body)["choices"][0]["message"]["content"] for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda body: joined_chat(server.events("/v1/chat/completions", {**body, "stream": True}))[0], bodies))
        self.assertEqual(together, alone)


class OpenAiClient(unittest.TestCase):
    def setUp(self):
        self.client = server.client()

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [NAME])
        self.assertEqual(self.client.models.retrieve(NAME).owned_by, "quire")

    def test_chat(self):
        answer = self.client.chat.completions.create(model=NAME, messages=CHAT, temperature=0, max_completion_tokens=12, logprobs=True,
                                                     top_logprobs=3)
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertEqual(len(answer.choices[0].logprobs.content[0].top_logprobs), 3)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertIsNotNone(answer.usage.prompt_tokens_details.cached_tokens)
        stream = self.client.chat.completions.create(model=NAME, messages=CHAT, temperature=0, max_completion_tokens=12, stream=True,
                                                     stream_options={"include_usage": True})
        text, usage = "", None
        for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(text, answer.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, answer.usage.completion_tokens)

    def test_completions(self):
        answer = self.client.completions.create(model=NAME, prompt=["One, two, three,", "A, B, C,"], max_tokens=5, temperature=0, n=2,
                                                logprobs=2, seed=1)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.choices[0].text, answer.choices[1].text)
        self.assertEqual(len(answer.choices[0].logprobs.top_logprobs[0]), 2)
        text = "".join(chunk.choices[0].text for chunk in self.client.completions.create(
            model=NAME, prompt="One, two, three,", max_tokens=5, temperature=0, stream=True))
        self.assertEqual(text, answer.choices[0].text)

    def test_responses(self):
        answer = self.client.responses.create(model=NAME, input=CHAT[0]["content"], temperature=0, max_output_tokens=12)
        self.assertIn("Paris", answer.output_text)
        with self.client.responses.stream(model=NAME, input=CHAT, temperature=0, max_output_tokens=12) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual(text, answer.output_text)
        self.assertEqual(final.output_text, answer.output_text)
        self.assertEqual(final.usage.output_tokens, answer.usage.output_tokens)

    def test_json_schema(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
                  "required": ["city", "people"], "additionalProperties": False}
        ask = [{"role": "user", "content": "Name a city and how many people live there, as JSON."}]
        answer = self.client.chat.completions.create(
            model=NAME, messages=ask, temperature=0, max_tokens=100,
            response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}})
        jsonschema.validate(json.loads(answer.choices[0].message.content), schema)
        answer = self.client.chat.completions.create(model=NAME, messages=ask, temperature=0, max_tokens=200,
                                                     response_format={"type": "json_object"})
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)
        answer = self.client.responses.create(model=NAME, input=ask, temperature=0, max_output_tokens=100,
                                              text={"format": {"type": "json_schema", "name": "city", "schema": schema, "strict": True}})
        jsonschema.validate(json.loads(answer.output_text), schema)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model=NAME, messages=CHAT, temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="gpt-5", messages=CHAT)
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "word " * 5000}], stream=True)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_grammar_that_cannot_be_kept_is_the_callers(self):
        """Found while the answer is made. A 500 would be sent again twice by the client, to the same end."""
        parts = range(600)
        grammar = ('root ::= "The answer is ready: " ' + " ".join(f"a{i}" for i in parts)
                   + "".join(f'\na{i} ::= "x"* | "y"* | "z"?' for i in parts))
        ask = dict(model=NAME, messages=CHAT, max_tokens=20, extra_body={"response_format": {"type": "grammar", "grammar": grammar}})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(**ask)
        self.assertEqual(caught.exception.code, "invalid_value")
        self.assertIn("too many ways", str(caught.exception))
        text = ""
        with self.assertRaises(openai.APIError) as caught:
            for chunk in self.client.chat.completions.create(**ask, stream=True):
                text += chunk.choices[0].delta.content or ""
        self.assertIn("The answer", text)
        self.assertEqual((caught.exception.type, caught.exception.code), ("invalid_request_error", "invalid_value"))


def tool(name, properties):
    return {"type": "function", "function": {"name": name, "description": f"the tool {name}", "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


class Tools(unittest.TestCase):
    """The model with a template for tools: what it may say is held to the tools' schemas."""

    TOOLS = [tool("weather", {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}}),
             tool("clock", {"zone": {"enum": ["utc", "local"]}})]
    ASK = [{"role": "user", "content": "What is the weather in Paris?"}]

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(cls.folder.name) / "tools.gguf"
        with_template(SMOLLM2, TOOL_TEMPLATE, model)
        cls.server = Server(model, *FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def ask(self, **more):
        body = {"messages": self.ASK, "tools": self.TOOLS, "temperature": 0, "max_tokens": 120, **more}
        status, answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        events = self.server.events("/v1/chat/completions", {**body, "stream": True})
        calls = []
        for event in events[:-1]:
            for delta in event["choices"][0]["delta"].get("tool_calls", []):
                if "id" in delta:
                    calls.append({"id": delta["id"], "type": "function", "function": dict(delta["function"])})
                else:
                    calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
        message = answer["choices"][0]["message"]
        functions = [call["function"] for call in message.get("tool_calls", [])]
        self.assertEqual([call["function"] for call in calls], functions)  # ids are of their own answer
        self.assertEqual(joined_chat(events)[0], message["content"] or "")
        self.assertNotIn("<tool_call>", message["content"] or "")
        return answer["choices"][0]

    def test_a_named_tool_is_called(self):
        choice = self.ask(tool_choice={"type": "function", "function": {"name": "clock"}})
        call = choice["message"]["tool_calls"][0]["function"]
        self.assertEqual(call["name"], "clock")
        self.assertIn(json.loads(call["arguments"])["zone"], ("utc", "local"))
        self.assertEqual(choice["finish_reason"], "tool_calls")

    def test_a_required_call_is_one_of_the_tools(self):
        choice = self.ask(tool_choice="required", parallel_tool_calls=False)
        (call,) = choice["message"]["tool_calls"]
        self.assertIn(call["function"]["name"], ("weather", "clock"))
        self.assertIsInstance(json.loads(call["function"]["arguments"]), dict)
        # The result goes back, and the model answers.
        messages = self.ASK + [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
        status, answer = self.server.post("/v1/chat/completions", {"messages": messages, "tools": self.TOOLS, "max_tokens": 8})
        self.assertEqual(status, 200, answer)

    def test_the_models_choice(self):
        self.assertIn(self.ask()["finish_reason"], ("stop", "length", "tool_calls"))
        self.assertNotIn("tool_calls", self.ask(tool_choice="none")["message"])

    def test_a_response_with_calls(self):
        tools = [{"type": "function", **tool["function"]} for tool in self.TOOLS]
        body = {"input": "What time is it?", "tools": tools, "tool_choice": {"type": "function", "name": "clock"}, "temperature": 0,
                "max_output_tokens": 120}
        status, answer = self.server.post("/v1/responses", body)
        self.assertEqual(status, 200, answer)
        call = answer["output"][-1]
        self.assertEqual((call["type"], call["name"], call["status"]), ("function_call", "clock", "completed"))
        events = self.server.events("/v1/responses", {**body, "stream": True})
        self.assertEqual("".join(event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"),
                         call["arguments"])
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
        status, answer = self.server.post("/v1/responses", {**body, "input": [{"role": "user", "content": "Time?"}, call, result],
                                                            "tool_choice": "none"})
        self.assertEqual((status, answer.get("output", [{}])[0].get("type")), (200, "message"), answer)


class Document(unittest.TestCase):
    def setUp(self):
        self.document = server.get("/openapi.json")[1]

    def check(self, value, name):
        jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": self.document["components"]}).validate(value)

    def test_answers_are_what_it_says(self):
        for path, body, name in (("/v1/completions", {"prompt": "a", "max_tokens": 2, "logprobs": 1, "echo": True}, "Completion"),
                                 ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 2, "logprobs": True}, "ChatCompletion"),
                                 ("/v1/responses", {"input": "a", "max_output_tokens": 2}, "Response"),
                                 ("/tokenize", {"prompt": "a"}, "Tokens"), ("/detokenize", {"tokens": [5]}, "Text"),
                                 ("/tokenize", {"prompt": 5}, "Error"), ("/v1/completions", {}, "Error")):
            self.check(server.post(path, body)[1], name)
        self.check(server.get("/v1/models")[1], "ModelList")

    def test_requests_here_are_what_it_takes(self):
        self.check({"messages": CHAT, "max_tokens": 1, "temperature": 0, "stop": ["a"], "tool_choice": "auto", "n": 1}, "ChatRequest")
        with self.assertRaises(jsonschema.ValidationError):
            self.check({"messages": CHAT, "temperature": 3}, "ChatRequest")

    def test_schemathesis(self):
        """Requests made from the document, good and bad: no 5xx, and every answer is one that the document has."""
        program = pathlib.Path(sys.executable).with_name("schemathesis")
        with tempfile.TemporaryDirectory() as folder:
            # Short answers: what is asked, not how long it is, is the matter here.
            (pathlib.Path(folder) / "short.py").write_text(
                "import schemathesis\n"
                "@schemathesis.hook\n"
                "def map_body(context, body):\n"
                "    if isinstance(body, dict):\n"
                "        if isinstance(body.get('n'), int) and body['n'] > 2: body['n'] = 2\n"
                "        body['deadline_s'] = 0.2\n"
                "    return body\n")
            examples = os.environ.get("QUIRE_SCHEMA_EXAMPLES", "25")
            done = subprocess.run(
                [sys.executable, program, "run", f"http://127.0.0.1:{server.port}/openapi.json", "--max-examples", examples, "--phases", "fuzzing", "--checks",
                 "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection",
                 "--request-timeout", "120", "--seed", "7", "--no-color", "--generation-database", "none"],
                capture_output=True, text=True, timeout=1500, cwd=folder, env={**os.environ, "PYTHONPATH": folder, "SCHEMATHESIS_HOOKS": "short"})
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])


if __name__ == "__main__":
    QUIRE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
