"""What scripts/sizes.py finds in a source, and what scripts/check_rooms.py says of one."""
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import check_rooms  # noqa: E402
import sizes  # noqa: E402

SOURCE = '''#include "a.h"
namespace room {
// void not_here() {
struct Thing {
  int two() const {
    return 2;  // "}"
  }
  std::vector<int> all = {1, 2};
};
template <typename T>
Result<T> Thing::made(const std::function<int(int)>& f) const noexcept {
  const auto inner = [&](int k) { return f(k); };
  if (inner(1) > 0) { return R"(} } })"; }
  return {};
}
}  // namespace room
TEST_P(Suite, Name) {
}
'''


def test_functions_are_found_with_their_lines():
    assert list(sizes.cpp_functions(SOURCE)) == [("two", 5, 3), ("Thing::made", 10, 6), ("TEST_P", 17, 2)]
    assert list(sizes.python_functions("def f():\n    def g():\n        pass\n")) == [("f", 1, 3), ("g", 2, 2)]
    assert sizes.code_lines(SOURCE, ".cpp") == 17
    assert {"fold_domain", "lower"} <= {each["function"] for each in sizes.count()["functions"]}


@pytest.mark.parametrize("text, wrong", [
    ("// a tile of a warp\n", "is not a word of passes"),
    ("// CTAs share it\n", "is not a word of passes"),
    ("// its functional form\n", ""),
    ('#include "stitch/stitch.h"\n', "passes looks right, to stitch"),
    ('#include "graph/print.h"\n', "side entrance to graph"),
    ("\n" * 2000, ""),  # length is no breach
    ("int x;" + " " * 95 + "\n", "101 columns"),
    ("auto s = R\"ir(\n" + "a" * 200 + ")ir\";\n", ""),  # a raw string's lines are another language's
    ("auto s = R\"ir(\n)ir\";\n" + "a" * 200, "a.h:3: 200 columns"),
])
def test_rooms_know_their_words(tmp_path, monkeypatch, text, wrong):
    rooms = check_rooms.read_rooms(ROOT / "src" / "rooms.txt")
    path = tmp_path / "src" / "passes" / "a.h"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setattr(check_rooms, "ROOT", tmp_path)
    order = {name: place for place, (name, _) in enumerate(rooms)}
    said = "\n".join(check_rooms.check_file(path, "passes", dict(rooms)["passes"], order)) + "\n".join(check_rooms.check_columns(path))
    assert wrong in said and bool(said) == bool(wrong), said


def test_a_listing_is_no_verdict():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "sizes.py", "--longest", "3"], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.split("longest files\n")[1].splitlines()) == 3 + 2 + 3
