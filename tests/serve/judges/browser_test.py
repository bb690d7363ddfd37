"""The page at / in Chromium: what it shows of models, tenants, lanes and refusals, and that names are no markup."""

import json

import pytest
from conftest import random, save_mlp, wait_until
from selenium import webdriver
from selenium.webdriver.common.by import By

INFER = "/v2/models/mlp/infer"


def body(columns=8, **more):
    return {"inputs": [{"name": "x", "shape": [1, columns], "datatype": "FP32", "data": random(1, columns).tolist()}], **more}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "--window-size=1400,1000"):
        options.add_argument(flag)
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    one = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    yield one
    one.quit()


def table(browser, name):
    """A table's rows by heading."""
    # One script, for the page fills its tables anew each second.
    rows = browser.execute_script("return [...document.getElementById(arguments[0]).rows].map(row => [...row.cells].map(cell => cell.textContent))", name)
    return [dict(zip(rows[0], row)) for row in rows[1:] if len(row) == len(rows[0])]


def complaints(browser):
    return [line for line in browser.get_log("browser") if line["level"] == "SEVERE" and "favicon" not in line["message"]]


def test_page(tmp_path, start, browser):
    save_mlp(tmp_path / "models" / "mlp")
    (tmp_path / "models" / "broken").mkdir()
    (tmp_path / "models" / "broken" / "model.onnx").write_bytes(b"no model")
    server = start(tmp_path / "models")
    browser.get(f"http://{server.http}/")
    wait_until(lambda: "ready" in browser.find_element(By.ID, "state").text)
    for _ in range(7):
        assert server.ask("POST", INFER, body(parameters={"tenant": "<img src=x onerror='document.title=1'>", "timeout": 60_000_000}))[0] == 200
    assert server.ask("POST", INFER, body(columns=7, parameters={"tenant": "careless"}))[0] == 400
    wait_until(lambda: [one for one in table(browser, "tenants") if one["tenant"].startswith("<img") and one["answered"] == "7"])
    models = {one["model"]: one for one in table(browser, "models")}
    assert models["mlp"]["state"] == "READY" and models["mlp"]["answered"] == "7"
    assert models["broken"]["state"] != "READY" and ":" in models["broken"]["state"], models
    assert any(one["model"] == "mlp" and one["why"] for one in table(browser, "lanes"))
    refusal = table(browser, "refusals")[0]
    assert (refusal["model"], refusal["tenant"], refusal["what"]) == ("mlp", "careless", "bad_request") and "7" in refusal["why"]
    assert browser.title == "obelisk serve" and not browser.find_elements(By.TAG_NAME, "img")
    assert not complaints(browser)
    # A model that goes is seen to go, and so is the server.
    assert server.ask("POST", "/v2/repository/models/mlp/unload")[0] == 200
    wait_until(lambda: {one["model"]: one for one in table(browser, "models")}.get("mlp", {}).get("state") != "READY")
    assert server.stop() == 0
    wait_until(lambda: "does not answer" in browser.find_element(By.ID, "state").text)


def test_page_asks_for_a_token(tmp_path, start, browser):
    save_mlp(tmp_path / "models" / "mlp")
    (tmp_path / "tokens").write_text("secret-1 tenant-a\n")
    server = start(tmp_path / "models", "--token-file", tmp_path / "tokens")
    head = {"Authorization": "Bearer secret-1"}
    assert server.ask("POST", INFER, body(), head)[0] == 200
    status, _, text = server.ask("GET", "/", headers=head)
    assert status == 200, text
    browser.get(f"http://{server.http}/")
    box = browser.find_element(By.ID, "secret")
    wait_until(box.is_displayed)
    box.send_keys("secret-1")
    wait_until(lambda: [one for one in table(browser, "tenants") if one["tenant"] == "tenant-a" and one["answered"] == "1"])
    assert not box.is_displayed()
    browser.execute_script("arguments[0].value = 'wrong'", box)
    wait_until(box.is_displayed)
    assert json.loads(server.ask("GET", "/v2/live.json")[2])["error"]
