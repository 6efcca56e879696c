"""A `quire serve` of its own for a test, and plain requests to it."""
import http.client
import json
import re
import signal
import subprocess
import tempfile
import time


class Server:
    """with Server(program, model, "--max-running", 4) as server: server.get("/v1/kv")"""

    def __init__(self, program, model, *arguments, key=None):
        self.key = key
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([program, "serve", str(model), "--port", "0", *map(str, arguments)],
                                        stdout=subprocess.DEVNULL, stderr=self.log)
        deadline = time.monotonic() + 120
        while not (found := re.search(r" at http://127\.0\.0\.1:(\d+)", self.said())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"the server did not start: {self.said()}")
            time.sleep(0.02)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for end in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second TERM ends it at once
            if self.process.poll() is None:
                self.process.send_signal(end)
                try:
                    self.process.wait(10)
                except subprocess.TimeoutExpired:
                    pass
        self.log.close()

    def headers(self):
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def ask(self, method, path, body=None, seconds=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {"content-type": "application/json", **self.headers()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path):
        status, body = self.ask("GET", path)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {body[:200]}")
        return json.loads(body)

    def post(self, path, body):
        status, answer = self.ask("POST", path, body)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {answer[:300]}")
        return json.loads(answer)
