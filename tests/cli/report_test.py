"""The page that `obelisk report` writes: its data, and what a browser makes of it."""
import json
import re
import shutil

import pytest
from conftest import found, random, save, shared_library
from onnx import TensorProto, helper

SCHEMES = {"local", "regional", "global"}


@pytest.fixture
def encoder(tmp_path):
    """A norm, a product, an activation, a softmax and a hidden script end in the names."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["normed"], name="block/norm"),
        helper.make_node("MatMul", ["normed", "w"], ["product"], name="block/</script><b>"),
        helper.make_node("Gelu", ["product"], ["active"], name="block/gelu"),
        helper.make_node("MatMul", ["active", "v"], ["scores"], name="head/product"),
        helper.make_node("Softmax", ["scores"], ["y"], name="head/softmax", axis=-1),
        helper.make_node("ReduceSum", ["active"], ["z"], name="head/sum", keepdims=0),
    ]
    weights = {"scale": random(64), "bias": random(64), "w": random(64, 128), "v": random(128, 32)}
    return save(tmp_path / "encoder.onnx", nodes, {"x": (TensorProto.FLOAT, ["rows", 64])},
                {"y": (TensorProto.FLOAT, ["rows", 32]), "z": (TensorProto.FLOAT, [])}, weights, opset=20)


def data_of(page):
    text = page.read_text()
    assert text.count("</script>") == 2  # the data's and the drawing's: no name ends one
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture
def report(obelisk, encoder, tmp_path):
    def write(*words, code=0):
        answer = obelisk("report", encoder, "-o", "report.html", "--shape", "rows=16", *words, "--json", code=code)
        data = data_of(tmp_path / "report.html")
        assert answer.json["report"] == data
        return data
    return write


def consistent(data):
    """What must hold of every report: indices lead somewhere, parts agree with each other."""
    network, works = data["network"], data["works"]
    for group, members in ((k, group["nodes"]) for k, group in enumerate(network["groups"])):
        assert members and all(network["nodes"][n]["group"] == group for n in members)
    for edge in network["edges"]:
        assert edge["scheme"] in SCHEMES and edge["why"]
        ends = [network["nodes"][edge[end]]["group"] for end in ("from", "to")]
        if edge["scheme"] != "global":
            assert ends[0] == ends[1] >= 0, edge
    tasks = 0
    for sm, wave, work, count, start, end in data["timeline"]["predicted"]:
        assert 0 <= sm < data["workers"] and 0 <= start <= end <= data["predicted_us"] + 1e-3
        assert works[work]["wave"] == wave
        tasks += count
    assert tasks == data["tasks"] == sum(work["tasks"] for work in works)
    for work in works:
        assert work["bytes"] > 0 and work["floor_us"] > 0 and work["peak"] > 0
        assert network["groups"][work["group"]]["wave"] == work["wave"]
    buffers = data["memory"]["buffers"]
    for k, one in enumerate(buffers):
        assert one["offset"] + one["bytes"] <= data["memory"]["arena"]
        for other in buffers[:k]:
            together = one["first"] <= other["last"] and other["first"] <= one["last"]
            assert not together or one["offset"] + one["bytes"] <= other["offset"] or other["offset"] + other["bytes"] <= one["offset"]
    assert {step["step"] for step in data["steps"]} >= {"import", "stitch", "schedule", "codegen"}
    assert all(step["seconds"] >= 0 for step in data["steps"])
    return data


def test_of_a_cpu_it_has_measured_tasks_and_errors_of_each_output(report):
    data = consistent(report("--target", "cpu", "--sms", "2"))
    assert data["target"] == "cpu" and data["workers"] == 2
    assert {node["op"] for node in data["network"]["nodes"]} >= {"MatMul", "ReduceSum"}
    assert sum(count for _, _, _, count, _, _ in data["timeline"]["measured"]) == data["tasks"]
    assert all(start <= end for *_, start, end in data["timeline"]["measured"])
    assert all(work["measured_us"] > 0 for work in data["works"])
    product = next(work for work in data["works"] if "script" in work["label"])
    assert product["flops"] >= 2 * 16 * 64 * 128  # its epilogue's besides
    verify = data["verify"]
    assert verify["done"] and verify["ok"] and [each["name"] for each in verify["outputs"]] == ["y", "z"]
    for each in verify["outputs"]:
        assert each["ok"] and each["max_rel"] <= each["tolerance"]
    again = report("--target", "cpu", "--sms", "2")["verify"]  # what the cache kept
    assert again == verify


def test_without_a_run_it_says_so(report):
    data = consistent(report("--target", "cpu", "--no-run", "--verify", "off"))
    assert data["timeline"]["measured"] is None and data["timeline"]["why_not_measured"] == "--no-run"
    assert data["verify"] == {"done": False, "why": "--verify off"}


@pytest.mark.parametrize("granularity", ["mono", "stitch", "auto"])
def test_of_a_gpu_that_is_not_here(report, obelisk, granularity):
    data = consistent(report("--target", "sm_90a", "--granularity", granularity, "--precision", "fp16"))
    assert data["target"] == "sm_90a" and data["workers"] > 100 and data["timeline"]["measured"] is None
    assert data["peaks"]["tensor_16"] > data["peaks"]["f32"] > 0
    assert not data["verify"]["done"]
    if found(obelisk, "nvrtc")["ok"]:
        assert not data["not_loaded"] and data["kernels"]


def test_a_missing_device_compiler_still_gives_a_page(report, obelisk, monkeypatch, tmp_path):
    old = tmp_path / "old"  # what is asked for is what is taken
    shared_library(old / "libnvrtc.so.12", "int nvrtcVersion(int* major, int* minor) { *major = 12, *minor = 3; return 0; }")
    monkeypatch.setitem(obelisk.environment, "OBELISK_NVRTC", str(old))
    data = consistent(report("--target", "sm_90a", "--granularity", "stitch", "--cache", "off"))
    assert "12.3" in data["not_loaded"] and data["kernels"] == []


def test_of_a_compiled_file_it_tells_what_its_graph_becomes(obelisk, encoder, report, tmp_path):
    of_model = report("--target", "cpu", "--sms", "2", "--no-run")
    obelisk("compile", encoder, "-o", "m.obk", "--shape", "rows=16", "--target", "cpu", "--sms", "2", code=0)
    obelisk("report", "m.obk", "-o", "m.html", "--target", "cpu", "--sms", "2", "--no-run", code=0)
    of_file = consistent(data_of(tmp_path / "m.html"))
    assert [group["kind"] for group in of_file["network"]["groups"]] == [group["kind"] for group in of_model["network"]["groups"]]
    assert of_file["verify"]["ok"]


def test_bad_use_writes_nothing(obelisk, encoder, tmp_path):
    obelisk("report", encoder, code=1)
    assert "the model itself" in obelisk("report", encoder, "-o", encoder, "--shape", "rows=1", code=1).err
    obelisk("report", encoder, "-o", "r.html", "--shape", "rows=1", "--target", "sm_1", code=1)
    assert not (tmp_path / "r.html").exists()


# ---- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (scripts/requirements.txt)")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no Chromium is installed (Debian: chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    page.wrong, page.asked = [], []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda message: page.wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    assert not page.wrong
    context.close()


def shown(page, tmp_path):
    file = (tmp_path / "report.html").as_uri()
    page.goto(file)
    page.wait_for_selector("html[data-drawn=yes]")
    assert page.asked == [file], "the page loads nothing"
    return page


def test_the_browser_draws_what_the_data_says(report, page, tmp_path):
    data = report("--target", "cpu", "--sms", "2")
    shown(page, tmp_path)
    network = data["network"]
    assert page.locator("#network-svg .group").count() >= len(network["groups"])
    assert page.locator("#network-svg .part").count() == len(network["edges"])
    assert page.locator("#timeline-svg .task").count() == len(data["timeline"]["measured"])
    page.get_by_role("button", name="predicted").click()
    assert page.locator("#timeline-svg .task").count() == len(data["timeline"]["predicted"])
    assert page.locator("#memory-svg .buffer").count() == len(data["memory"]["buffers"])
    assert page.locator("#roofline-svg .point").count() == sum(work["flops"] > 0 for work in data["works"])
    assert page.locator("#verification-body tbody tr").count() == 2
    assert page.locator("#steps-body tbody tr").count() >= len(data["steps"])
    assert page.locator("#works-body tbody tr").count() == len(data["works"])
    assert page.locator("b").count() == 0  # names are text
    boxes = [page.locator("#network-svg .group").nth(k).bounding_box() for k in range(len(network["groups"]))]
    for k, one in enumerate(boxes):  # none hides another
        for other in boxes[:k]:
            assert (one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
                    or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"])


def test_reasons_come_by_pointer_and_by_keyboard(report, page, tmp_path):
    data = report("--target", "cpu", "--no-run")
    shown(page, tmp_path)
    says = page.locator("#network-says")
    for k, edge in enumerate(data["network"]["edges"]):
        page.locator("#network-svg .part").nth(k).focus()
        assert f"why: {edge['why']}" in says.inner_text() and edge["scheme"] in says.inner_text()
    page.locator("#network-svg .group").first.hover(position={"x": 60, "y": 8})
    assert "group 0" in says.inner_text()
    page.locator("#network-svg .group").first.focus()
    page.keyboard.press("Tab")  # everything that says something can be reached
    assert page.evaluate("document.activeElement.getAttribute('aria-label')")


def test_schemes_and_kinds_differ_without_colour(report, page, tmp_path):
    data = report("--target", "cpu", "--no-run")
    shown(page, tmp_path)
    styles = {}
    for scheme in SCHEMES:
        line = page.locator(f"#legend path.edge.{scheme}")
        styles[scheme] = tuple(line.evaluate("line => [getComputedStyle(line).strokeDasharray, getComputedStyle(line).strokeWidth]"))
    assert len(set(styles.values())) == len(SCHEMES)
    for k, edge in enumerate(data["network"]["edges"]):  # and by a letter beside each line
        part = page.locator("#network-svg .part").nth(k)
        assert part.locator("text").text_content() == edge["scheme"][0].upper()
        line = part.locator("path.edge").evaluate("line => [getComputedStyle(line).strokeDasharray, getComputedStyle(line).strokeWidth]")
        assert tuple(line) == styles[edge["scheme"]]
    lines = page.locator("#kinds-svg pattern").evaluate_all("all => all.map(one => (one.querySelector('path') || {getAttribute: () => ''}).getAttribute('d'))")
    assert len(set(lines)) == len(lines) == 6


def test_a_gpu_report_draws_in_dark_mode_and_in_print(report, page, tmp_path):
    report("--target", "sm_90a", "--granularity", "stitch")
    page.emulate_media(color_scheme="dark")
    shown(page, tmp_path)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    page.emulate_media(media="print")
    assert page.locator("#network-frame").evaluate("frame => getComputedStyle(frame).overflow") == "visible"
