"""Shows a page in Chromium, wide and narrow, light and dark, and reports the results as JSON:
browser.py FILE [FOLDER]

With a folder, pictures of the four views are written to it. The browser is driven through a pipe (DevTools
protocol, messages end with a null byte). It has a temporary profile and no network.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VIEWS = [("desk", 1280), ("phone", 360)]


class Browser:
    def __init__(self, profile: str) -> None:
        # The browser reads messages from descriptor 3 and writes them to 4.
        ours, theirs = os.pipe(), os.pipe()

        def pipes() -> None:
            reads, writes = os.dup(ours[0]), os.dup(theirs[1])
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self.to, self.answers = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb")
        self.number, self.events, self.session, self.rest = 0, [], None, b""

    def read(self) -> dict:
        while b"\0" not in self.rest:
            more = os.read(self.answers.fileno(), 1 << 20)
            assert more, "the browser has ended"
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method: str, **params: object) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Loads a page. The loader's id distinguishes its load from that of the page before."""
        answer = self.ask("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        loader = answer["loaderId"]
        while not any(
            e.get("method") == "Page.lifecycleEvent" and e["params"]["name"] == "load" and e["params"]["loaderId"] == loader
            for e in self.events
        ):
            self.events.append(self.read())

    def value(self, expression: str) -> object:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def background(self) -> list:
        """Returns the page's colour. It is transparent until the style has been applied, which may be after the load."""
        for _ in range(1000):
            colour = self.value("getComputedStyle(document.body).backgroundColor")
            if colour.startswith("rgb("):
                return [int(n) for n in colour[4:-1].split(",")]
            time.sleep(0.01)
        shown = self.value("`${document.URL}, ${document.readyState}: ${document.documentElement.outerHTML.slice(0, 1000)}`")
        raise AssertionError(f"the page's colour is {colour}: {shown}")


def complaints(events: list) -> list:
    """Returns the messages that the console would show."""
    out = []
    for e in events:
        if e.get("method") == "Log.entryAdded":
            out.append(e["params"]["entry"]["text"])
        elif e.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.loadingFailed"):
            out.append(json.dumps(e["params"]))
    return out


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    pictures = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    profile = tempfile.mkdtemp(prefix="whet-browser-")
    browser = Browser(profile)
    try:
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            browser.ask(f"{domain}.enable")
        browser.ask("Page.setLifecycleEventsEnabled", enabled=True)
        views = []
        for name, width in VIEWS:
            for scheme in ("light", "dark"):
                browser.events.clear()
                browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
                browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                browser.open(page.as_uri())
                views.append({
                    "view": name, "scheme": scheme, "width": width,
                    "content_width": browser.value("document.documentElement.scrollWidth"),
                    "background": browser.background(),
                    "maps": browser.value("document.querySelectorAll('figure svg').length"),
                    "requests": [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"],
                    "console": complaints(browser.events),
                })
                if pictures:
                    shot = browser.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
                    (pictures / f"{name}-{scheme}.png").write_bytes(base64.b64decode(shot))
        if pictures:
            paper = browser.ask("Page.printToPDF", printBackground=True)["data"]
            (pictures / "paper.pdf").write_bytes(base64.b64decode(paper))
        print(json.dumps({"views": views}))
    finally:
        browser.process.kill()
        browser.process.wait()
        shutil.rmtree(profile, ignore_errors=True)


main()
