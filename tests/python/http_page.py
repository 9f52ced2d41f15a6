"""Opens the status page in Chromium, ranks lines there, and prints what the page shows as JSON.

    http_page.py URL PICTURE.png
"""

import base64
import json
import re
import subprocess
import sys
import urllib.request

url, picture = sys.argv[1:]
driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)


def address():
    for line in driver.stdout:
        if found := re.search(r"successfully on port (\d+)", line):
            return f"http://localhost:{found[1]}"
    raise SystemExit("chromedriver did not start")


def ask(path, body=None, method="POST"):
    data = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
    request = urllib.request.Request(base + path, data, method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=150) as reply:
        return json.load(reply)["value"]


# Runs in the page: waits for what is wanted by watching the page change.
WAIT = """
const done = arguments[0];
const look = () => { const found = WANTED; if (found) done(found); return found; };
if (!look()) {
  const watcher = new MutationObserver(() => { if (look()) watcher.disconnect(); });
  watcher.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
}
"""


def wait(wanted):
    # In the script's text: the page's policy forbids to evaluate a string.
    script = WAIT.replace("WANTED", f"({wanted})")
    return ask(f"{session}/execute/async", {"script": script, "args": []})


base, session = address(), None
try:
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1150,1250"]
    arguments += ["--disable-dev-shm-usage", "--hide-scrollbars"]
    options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
    options["goog:loggingPrefs"] = {"browser": "ALL"}
    options["timeouts"] = {"script": 120_000}
    made = ask("/session", {"capabilities": {"alwaysMatch": options}})
    session = f"/session/{made['sessionId']}"
    ask(f"{session}/url", {"url": url})
    said = {"state": wait("document.querySelector('#state.ready, #state.away')?.textContent")}
    said["about"] = wait("document.querySelector('#about').textContent")
    wait("document.querySelector('#rate path')?.getAttribute('d').length > 20")
    key = next(iter(ask(f"{session}/element", {"using": "css selector", "value": "#ask button"}).values()))
    ask(f"{session}/element/{key}/click")
    said["ranks"] = wait("document.querySelector('#ranks li') && [...document.querySelectorAll('#ranks li')].map(li => li.textContent)")
    said["workers"] = wait("document.querySelectorAll('#workers tr').length")
    # Two readings after the ranking its calls are in the plots.
    wait("document.querySelector('#time path')?.getAttribute('d').length > 5")
    said["plotted"] = True
    with open(picture, "wb") as file:
        file.write(base64.b64decode(ask(f"{session}/screenshot", method="GET")))
    log = ask(f"{session}/se/log", {"type": "browser"})
    said["errors"] = [entry["message"] for entry in log if entry["level"] == "SEVERE"]
finally:
    # Ends the browser, which would outlive its driver.
    if session:
        ask(session, method="DELETE")
    driver.terminate()
    driver.wait()
json.dump(said, sys.stdout)
