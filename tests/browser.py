"""A headless Chromium for tests, over the DevTools protocol on a pair of pipes. Standard library only.

    with Browser() as browser:
        page = browser.open("http://127.0.0.1:8080/", width=1280, height=900, dark=True)
        page.wait("document.title.length > 0")
        page.evaluate("document.title")

What a page writes to its console as an error, and what it throws, is kept in page.problems.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


class BrowserError(Exception):
    pass


def find_chromium():
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, seconds=60):
        self.seconds = seconds  # for any one answer
        self.profile = tempfile.mkdtemp(prefix="quire-browser-")
        # Chromium reads commands from descriptor 3 and answers on 4, each message ended by a zero byte.
        command_read, self.commands = os.pipe()
        self.answers, answer_write = os.pipe()
        arguments = [find_chromium(), "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
                     "--no-first-run", "--disable-gpu", "--disable-extensions", "--disable-background-networking",
                     "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio", "--hide-scrollbars"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium refuses to sandbox root

        def place_pipes():
            low, high = os.dup(command_read), os.dup(answer_write)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, preexec_fn=place_pipes, pass_fds=(3, 4), start_new_session=True)
        os.close(command_read)
        os.close(answer_write)
        self.rest = b""
        self.last_id = 0
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end()

    def end(self):
        try:
            self.call("Browser.close")
        except (BrowserError, OSError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)

    def message(self, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BrowserError("the browser did not answer in time")
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise BrowserError("the browser ended")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, params=None, session=None):
        self.last_id += 1
        command = {"id": self.last_id, "method": method, "params": params or {}}
        if session:
            command["sessionId"] = session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data):]
        deadline = time.monotonic() + self.seconds
        while True:
            message = self.message(deadline)
            if message.get("id") == self.last_id:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']['message']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def open(self, url, width=1280, height=900, ratio=1, dark=False, touch=False):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height, ratio, touch)
        page.call("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        page.call("Page.navigate", {"url": url})
        page.wait("document.readyState === 'complete' && location.protocol !== 'about:'")
        return page


class Page:
    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target

    def close(self):
        self.browser.call("Target.closeTarget", {"targetId": self.target})

    def call(self, method, params=None):
        return self.browser.call(method, params, self.session)

    def resize(self, width, height, ratio=1, touch=False):
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": touch})
        self.call("Emulation.setTouchEmulationEnabled", {"enabled": touch})

    # The value of an expression, or of the promise that it gives.
    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait(self, condition, seconds=30):
        deadline = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise BrowserError(f"not so within {seconds} s: {condition}")
            time.sleep(0.05)

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def click(self, selector):
        x, y = self.evaluate(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
                             " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})

    def press(self, key, text=None):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
                 "Home": 36, "End": 35}
        down = {"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        if text:
            down["text"] = text
        self.call("Input.dispatchKeyEvent", down)
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", "key": key, "code": key})

    def type(self, text):
        self.call("Input.insertText", {"text": text})

    def screenshot(self, path, whole=False):
        data = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    # Events of this page so far, by the protocol's name.
    def events(self, method):
        return [event["params"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == method]

    # What the page threw or complained about.
    @property
    def problems(self):
        self.evaluate("0")  # takes in what is on its way
        thrown = [event["exceptionDetails"].get("exception", {}).get("description", event["exceptionDetails"]["text"])
                  for event in self.events("Runtime.exceptionThrown")]
        logged = [event["entry"]["text"] for event in self.events("Log.entryAdded") if event["entry"]["level"] == "error"]
        return thrown + logged

    # Hosts that the page asked for anything.
    @property
    def asked(self):
        return sorted({event["request"]["url"].split("/")[2] for event in self.events("Network.requestWillBeSent")
                       if "://" in event["request"]["url"]})
