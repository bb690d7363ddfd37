"""What the documents say is there: links and paths, verbs and flags of docs/cli.md, commands that are shown, tests that
docs/papers.md names, and the picture of the README."""
import fnmatch
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, VERBS

DOCUMENTS = sorted(path for path in ROOT.rglob("*.md") if not {"build", ".venv", ".venv-zoo", ".git", "shared"} & set(path.relative_to(ROOT).parts)
                   and not path.relative_to(ROOT).parts[0].startswith("build"))
WITH_COMMANDS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/cli.md", "docs/numerics.md", "docs/performance.md")]
FOLDERS = r"(?:src|docs|scripts|tests|bench|examples|include|tools|cmake)"


def name_of(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """Of headings, as GitHub spells them."""
    return {re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            for line in prose(path).splitlines() if line.startswith("#")}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", prose(document)):
        target = target[0] or target[1]
        if re.match(r"https?://|mailto:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (document.parent / file).resolve() if file else document
        assert there.exists(), f"{name_of(document)}: {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(document)}: {target} is no heading of {name_of(there)}"


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each.name != "CHANGELOG.md"], ids=name_of)
def test_files_that_are_named_exist(document):
    for path in re.findall(rf"`({FOLDERS}/[\w./-]+\w)`", prose(document)):
        assert (ROOT / path).exists() or path.startswith("build"), f"{name_of(document)}: {path}"


ROOMS = [path for path in sorted((ROOT / "src").glob("*/README.md")) if path.parent.name not in ("api", "capi")]


@pytest.mark.parametrize("readme", ROOMS, ids=name_of)
def test_a_rooms_readme_names_its_files(readme):
    """Each file that its tables name is there, and each header of the room is named: a reader finds what decides something by the table alone."""
    room = readme.parent
    tested = [path for path in room.rglob("*") if path.is_file() and "test" not in path.relative_to(room).parts]
    ours = {str(path.relative_to(room)) for path in tested}
    named = set()
    for row in re.findall(r"^\| (.*?) \|", readme.read_text(), re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([\w/*.]+)`", row):
            path = name if "/" in name else folder + name
            folder = path.rpartition("/")[0] + "/" if "/" in path else ""
            found = {each for each in ours if any(fnmatch.fnmatchcase(each, p) for p in (path, path + ".h", path + ".cpp", "onnx/" + path + ".h", "onnx/" + path + ".cpp"))}
            assert found or "." not in name, f"{name_of(readme)}: {name}"
            named |= found
    headers = {each for each in ours if each.endswith((".h", ".cuh"))}
    prose_too = set(re.findall(r"`(?:[\w]+/)*(\w+)(?:\.\w+|\.\*)?`", readme.read_text()))
    unnamed = {each for each in headers - named if Path(each).stem not in prose_too and "/door/" not in "/" + each and Path(each).stem != room.name}
    assert not unnamed, f"{name_of(readme)} does not name {sorted(unnamed)}"


@pytest.fixture(scope="module")
def flags_of(program):
    """{verb: its flags} by --help, without --help itself; a verb of two words, `cache ls`, counts as its first."""
    def flags(*words):
        text = subprocess.run([program, *words, "--help"], capture_output=True, text=True, timeout=20, check=True).stdout
        inner = re.findall(r"^  (\w+) {2,}\w", text.partition("Subcommands:")[2], re.MULTILINE)
        own = re.findall(r"^  (-[-\w]+(?:,-[-\w]+)*)", text, re.MULTILINE)
        found = {flag for names in own for flag in names.split(",")} - {"-h", "--help"}
        return found.union(*(flags(*words, word) for word in inner)) if words else inner
    return {verb: flags(verb) for verb in flags()}


def sections(text):
    """{heading: text} of headings of the third level."""
    parts = re.split(r"^### (.*)\n", text, flags=re.MULTILINE)
    return {heading.strip(): re.split(r"^## ", body, flags=re.MULTILINE)[0] for heading, body in zip(parts[1::2], parts[2::2])}


def test_every_verb_and_flag_is_in_the_manual(flags_of):
    manual = sections((ROOT / "docs" / "cli.md").read_text())
    groups = {heading.removeprefix("Flags: "): body for heading, body in manual.items() if heading.startswith("Flags: ")}

    def told(text):
        """Flags of the first column of tables, and of a line of flags."""
        cells = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE) + re.findall(r"^Flags[^:]*: (`-.*)$", text, re.MULTILINE)
        return {flag for cell in cells for flag in re.findall(r"`(-[-\w]+)`", cell)}

    assert set(manual) - {f"Flags: {name}" for name in groups} == set(flags_of), "a verb has no section, or a section no verb"
    assert set(VERBS) <= set(flags_of)
    for verb, flags in flags_of.items():
        named = re.search(r"^Flags[^:]*: (.*)$", manual[verb], re.MULTILINE)
        shared = re.findall(r"\*(\w+)\*", named[1]) if named else []
        assert told(manual[verb]).union(*(told(groups[name]) for name in shared)) == flags, verb
    listed = set(re.findall(r"^\| \[(\w+)\]\(#", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE))
    assert listed == set(flags_of)


def commands(path):
    """Commands of the program that a document shows, in blocks of shell and at the beginning of a line."""
    text = path.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"^`(obelisk .*?)`", text, re.MULTILINE)
    for line in lines:
        words = shlex.split(line, comments=True)
        if words and words[0].removeprefix("build/bin/") == "obelisk":
            yield line.partition("#")[0].strip(), [word for word in words[1:]]


@pytest.mark.parametrize("document", [each for each in WITH_COMMANDS], ids=name_of)
def test_commands_that_are_shown_are_understood(document, flags_of, program, environment, tmp_path):
    """They get as far as a file that is not there, or a GPU."""
    for line, words in commands(document):
        words = words[:words.index("<")] if "<" in words else words
        if words[0] in ("doctor", "batch", "cache"):
            assert {word for word in words if word.startswith("-")} <= flags_of[words[0]], line
            continue
        if words[0].startswith("-") or words[0] == "VERB":
            continue
        done = subprocess.run([program, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        said = done.stderr.splitlines()[0] if done.stderr else ""
        model = next(word for word in words[1:] if not word.startswith("-"))
        assert done.returncode != 0 and (model in said or "NVIDIA" in said), f"{name_of(document)}: {line}\n{done.stderr}"


def test_environment_variables_are_read_somewhere():
    sources = "".join(path.read_text(errors="replace") for folder in ("src", "tools") for path in (ROOT / folder).rglob("*.cpp"))
    for variable in re.findall(r"`(OBELISK_\w+)`", (ROOT / "docs" / "cli.md").read_text()):
        assert f'"{variable}"' in sources or variable in sources, variable


def test_the_readme_is_a_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 700 and len(text.splitlines()) < 110


def test_the_picture_is_what_was_measured():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "chart.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- docs/papers.md ----
def gtest_names():
    """{(suite, name)} of all GoogleTest sources."""
    found = set()
    for path in (*ROOT.glob("src/*/test/**/*.cpp"), *ROOT.glob("tests/**/*.cpp")):
        for suite, name in re.findall(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|APART)\((?:(\w+), )?(\w+)\)", path.read_text(), re.MULTILINE):
            found.add((suite or "Failures", name))
    return found


def test_what_papers_md_names_exists():
    text = (ROOT / "docs" / "papers.md").read_text()
    results = {path.name for path in (ROOT / "bench" / "results").glob("*.json")}
    words = "".join(path.read_text() for path in (*ROOT.glob("tests/**/*.cpp"), *ROOT.glob("src/*/test/*.cpp"), *ROOT.glob("src/graph/*.h")))
    tests = gtest_names()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| feature", "| ---"))]
    assert len(rows) >= 30
    for row in rows:
        shown = row.split("|")[2]
        named = re.findall(r"`([^`]+)`", shown)
        assert named or shown.startswith(" none"), f"nothing shows: {row}"
        for name in named:
            if name.endswith(".json"):
                assert name in results, name
            elif re.fullmatch(r"\w+\.ir: .*", name):
                file, _, sentence = name.partition(": ")
                assert any(sentence in path.read_text() for path in ROOT.glob(f"src/*/test/{file}")), name
            elif re.fullmatch(r"[A-Z]\w+\.\w+", name):
                suite, _, case = name.partition(".")
                assert (suite, case) in tests, name
            elif re.fullmatch(r"\w+\.py::\w+", name):
                file, _, case = name.partition("::")
                assert f"def {case}(" in (ROOT / "tests" / "cli" / file).read_text(), name
            elif name.startswith("gpu_test: "):
                assert f'"{name.removeprefix("gpu_test: ")}"' in words, name
            elif name in ("compile --explain stitch", "gpu.py launches", "mono", "merged_with_the_product_behind"):
                continue  # beside what shows it
            else:
                assert (ROOT / name).exists(), f"{name} is neither a test nor a file"


def test_papers_md_fails_for_a_name_that_is_none():
    assert ("Waves", "AShortcutRunsBesideTheBranchThatItJoins") in gtest_names()
    assert ("Waves", "NobodyWroteThis") not in gtest_names()
