#!/usr/bin/env python3
"""Draws docs/report.svg: the network of a report's page, as a picture of its own.

    obelisk report model.onnx -o page.html && scripts/report_picture.py page.html docs/report.svg

Needs Chromium, which runs the page's script, and playwright (scripts/requirements.txt).
"""
import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main():
    page_file, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-drawn=yes]")
        picture = page.locator("#network-svg").evaluate("svg => new XMLSerializer().serializeToString(svg)")
        browser.close()
    style = re.search(r"<style>(.*?)</style>", page_file.read_text(), re.DOTALL)[1]
    for attribute in ("tabindex", "role", "aria-label"):
        picture = re.sub(rf' {attribute}="[^"]*"', "", picture)
    picture = re.sub(r"(<svg[^>]*>)", lambda found: f"{found[1]}<style>{style.strip()}\nsvg {{ background: var(--paper); }}</style>", picture, count=1)
    out.write_text(picture.replace("><", ">\n<") + "\n")


if __name__ == "__main__":
    main()
