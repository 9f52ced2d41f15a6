"""Opens the status page in Chromium, ranks lines there, and prints what the page shows as JSON.

    http_page.py URL PICTURE.png LOCKED_URL
"""

import base64
import itertools
import json
import re
import subprocess
import sys
import urllib.request

url, picture, locked = sys.argv[1:]
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


def click(selector):
    found = ask(f"{session}/element", {"using": "css selector", "value": selector})
    ask(f"{session}/element/{next(iter(found.values()))}/click")


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
    click("#ask button")
    said["ranks"] = wait("document.querySelector('#ranks li') && [...document.querySelectorAll('#ranks li')].map(li => li.textContent)")
    said["workers"] = wait("document.querySelectorAll('#workers tr').length")
    # Two readings after the ranking its calls are in the plots.
    wait("document.querySelector('#time path')?.getAttribute('d').length > 5")
    said["plotted"] = True
    with open(picture, "wb") as file:
        file.write(base64.b64decode(ask(f"{session}/screenshot", method="GET")))
    # As after half a minute in which the tab was hidden, or the service did not answer.
    away = "const now = performance.now.bind(performance); performance.now = () => now() + 30_000;"
    path = "document.querySelector('#rate path')?.getAttribute('d')"
    # A machine that stands still leaves gaps as well: those before this one are in what is drawn by now.
    drawn = ask(f"{session}/execute/sync", {"script": f"{away} return {path};", "args": []})
    more = f"{path}.split('M').length > {len(drawn.split('M'))}"
    wait(f"{more} && document.querySelector('#rate-now').textContent")
    stretches = wait(path).split("M")[1:]
    places = [[int(place) for place in re.findall(r"(?:^|L)(\d+) ", one)] for one in stretches]
    said["gap"] = max(after[0] - before[-1] for before, after in itertools.pairwise(places))
    log = ask(f"{session}/se/log", {"type": "browser"})
    said["errors"] = [entry["message"] for entry in log if entry["level"] == "SEVERE"]
    # The browser complains of each refusal in its log, which is as it should be.
    ask(f"{session}/url", {"url": locked})
    wait("!document.querySelector('#lock').hidden")
    said["without a key"] = ask(f"{session}/execute/sync", {"script": "return document.querySelector('#note').textContent", "args": []})
    ask(f"{session}/execute/sync", {"script": "document.querySelector('#key').value = 'wrong'", "args": []})
    click("#unlock button")
    said["wrong key"] = wait("document.querySelector('#note').textContent")
finally:
    # Ends the browser, which would outlive its driver.
    if session:
        ask(session, method="DELETE")
    driver.terminate()
    driver.wait()
json.dump(said, sys.stdout)
