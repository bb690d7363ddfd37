"""Run by torch_backend_test.py in an environment that has the wheel, PyTorch, torchvision and transformers."""
import contextlib
import functools
import logging
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import obelisk  # noqa: E402
import obelisk.torch as backend  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("OBELISK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    torch._dynamo.reset()
    backend.reset()
    torch.manual_seed(0)
    torch.set_num_threads(1)


def compiled(module, **options):
    return torch.compile(module, backend="obelisk", options={"threads": 1, **options})


def flat(answer):
    return list(torch.utils._pytree.tree_leaves(answer))


def steps(tensor):
    return [stride for stride, extent in zip(tensor.stride(), tensor.shape) if extent > 1]


def same(made, wanted, tolerance=1e-5):
    made, wanted = flat(made), flat(wanted)
    assert len(made) == len(wanted)
    for mine, theirs in zip(made, wanted):
        if isinstance(theirs, torch.Tensor):
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            assert steps(mine) == steps(theirs)
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
        else:
            assert mine == theirs


def only(graphs=None, calls=None):
    """The report says that everything ran compiled."""
    report = backend.report()
    assert report and all(graph.state == "compiled" for graph in report), str(report)
    if graphs is not None:
        assert len(report) == graphs, str(report)
    if calls is not None:
        assert sum(graph.compiled_calls for graph in report) == calls, str(report)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.nn.functional.gelu(self.norm(self.first(x))))


# ---- whole models ----
def test_resnet18():
    models = pytest.importorskip("torchvision.models")
    model = models.resnet18(weights=None).eval()
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-0.2, 0.2), part.running_var.uniform_(0.7, 1.3)
        fast, x = compiled(model), torch.randn(2, 3, 64, 64)
        for turn in range(2):
            same(fast(x), model(x), 1e-4)
            x = torch.randn(2, 3, 64, 64)
    only(graphs=1, calls=2)
    graph, = backend.report()
    assert 0 < graph.shared_bytes <= graph.weight_bytes and graph.programs == 1


def test_bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    model = transformers.BertModel(config).eval()
    words, mask = torch.randint(0, 100, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, 7:] = 0
    with torch.no_grad():
        made, wanted = compiled(model)(words, attention_mask=mask), model(words, attention_mask=mask)
    assert type(made) is type(wanted)
    same([*made.values()], [*wanted.values()])
    only()


# ---- where it is found ----
def test_the_name_is_known_without_an_import():
    text = ("import torch; fast = torch.compile(torch.nn.Linear(4, 3), backend='obelisk')\n"
            "with torch.no_grad(): fast(torch.ones(2, 4))\n"
            "import obelisk.torch as backend; assert backend.report().compiled == 1, str(backend.report())")
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)
    assert "obelisk" in torch._dynamo.list_backends()


def test_options_are_checked():
    with torch.no_grad():
        with pytest.raises(Exception, match="no option 'speed'"):
            compiled(Mlp(), speed=3)(torch.ones(2, 8))
        with pytest.raises(Exception, match="once, always or never"):
            compiled(Mlp(), verify="maybe")(torch.ones(2, 8))


# ---- fallback ----
def test_what_cannot_be_compiled_runs_eagerly_and_says_why(caplog):
    def draws(x):
        return x + torch.rand(4)

    with torch.no_grad(), caplog.at_level(logging.WARNING, "obelisk"):
        torch.manual_seed(3)
        made = compiled(draws)(torch.zeros(4))
        torch.manual_seed(3)
        assert torch.equal(made, draws(torch.zeros(4)))
        graph, = backend.report()
        assert graph.state == "eager" and graph.eager_calls == 1 and "random" in next(iter(graph.reasons))
        assert "random" in caplog.text
        torch._dynamo.reset()
        with pytest.raises(Exception, match="random"):
            compiled(draws, fallback=False)(torch.zeros(4))


def test_a_program_that_answers_wrongly_is_never_believed(monkeypatch):
    """The translation of one operation is made wrong: all answers are eager's, and the report says so."""
    from onnxscript import opset20 as op

    def wrong(x, other, alpha=1.0):
        return op.Add(x, op.Add(other, other))

    monkeypatch.setattr(torch.onnx, "export", functools.partial(torch.onnx.export, custom_translation_table={torch.ops.aten.add.Tensor: wrong}))
    with torch.no_grad():
        for verify, wrong_ones in (("once", 0), ("always", 0), ("never", 2)):
            torch._dynamo.reset()
            backend.reset()
            fast = compiled(lambda x, y: x + y, verify=verify)
            x, y = torch.randn(5), torch.randn(5)
            assert sum(not torch.equal(fast(x, y), x + y) for _ in range(2)) == wrong_ones
            assert backend.report().compiled == (verify == "never")
            assert any("wrong" in reason for reason in backend.report().reasons) == (verify != "never")


def test_operations_that_no_program_can_do_divide_a_graph():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            x = torch.relu(self.first(x)) + 1
            x = nn.functional.dropout(x, 0.5, training=True)
            return torch.tanh(self.second(x) * 2), torch.special.airy_ai(x.sum(-1)) + 1  # which ONNX has no name for

    model = Dropped()
    fast = compiled(model)
    with torch.no_grad():
        for turn in range(4):
            x = torch.randn(3, 8)
            torch.manual_seed(turn)
            made = fast(x)
            torch.manual_seed(turn)
            same(made, model(x))
    graph, = backend.report()
    assert graph.state == "in parts" and graph.parts >= 2 and 2 <= graph.eager_nodes < graph.nodes / 2 and graph.compiled_calls >= 6, repr(graph)
    assert any("random" in reason for reason in graph.reasons) and any("airy" in reason for reason in graph.reasons)


def test_an_index_out_of_range_is_eagers_error():
    table = nn.Embedding(10, 4)
    fast = compiled(table)
    with torch.no_grad():
        same(fast(torch.tensor([1, 9])), table(torch.tensor([1, 9])))
        with pytest.raises(IndexError):
            fast(torch.tensor([1, 10]))
        same(fast(torch.tensor([3, 4])), table(torch.tensor([3, 4])))


# ---- graphs, aliases, mutation ----
def test_graph_breaks():
    def f(x):
        x = torch.relu(x) * 2
        torch._dynamo.graph_break()
        return torch.sin(x) + 1

    with torch.no_grad():
        x = torch.randn(3, 4)
        same(compiled(f)(x), f(x))
    only(graphs=2)


def test_outputs_that_are_inputs_or_views():
    def f(x, y):
        z = x * 2
        return x, z, z.view(-1), y.t(), x[1:], None, 3, z.transpose(0, 1), x + y

    with torch.no_grad():
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        made, wanted = compiled(f)(x, y), f(x, y)
        same(made, wanted)
        assert made[0] is x and made[2].data_ptr() == made[1].data_ptr() and made[3].data_ptr() == y.data_ptr()
        made[1].zero_()
        assert not made[2].any() and not made[7].any()


def test_inputs_and_buffers_that_are_written():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x, total):
            self.seen.add_(x.sum(0))
            total.mul_(2).add_(1)
            x[:, 0] = x[:, 1] * 2
            return self.norm(x) + self.seen + total

    mine, theirs = Counter(), Counter()
    fast = compiled(mine)
    with torch.no_grad():
        for turn in range(3):
            x, total = torch.randn(5, 3), torch.randn(3)
            copies = x.clone(), total.clone()
            same(fast(x, total), theirs(*copies))
            same([x, total], list(copies))
            same(dict(mine.named_buffers()), dict(theirs.named_buffers()))
    only(calls=3)


def test_a_static_cache_of_keys():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(8, 24)
            self.register_buffer("keys", torch.zeros(1, 2, 6, 4))
            self.register_buffer("values", torch.zeros(1, 2, 6, 4))

        def forward(self, x, position):
            q, k, v = self.project(x).view(1, 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            mask = torch.arange(6) <= position
            return nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask.view(1, 1, 1, 6))

    mine, theirs = Step(), Step()
    theirs.load_state_dict(mine.state_dict())
    fast = compiled(mine)
    with torch.no_grad():
        for position in range(4):
            x = torch.randn(1, 1, 8)
            same(fast(x, torch.tensor([position])), theirs(x, torch.tensor([position])))
            same(mine.keys, theirs.keys)
    only(graphs=1, calls=4)
    assert backend.report()[0].updated_bytes == 2 * 1 * 2 * 6 * 4 * 4


def stepped(step, *caches, updated, **options):
    """Four steps, beside eager's on copies; `updated` caches are programs' to write."""
    fast, theirs = compiled(step, **options), [cache.clone() for cache in caches]
    with torch.no_grad():
        for position in range(4):
            row, new = torch.tensor([position]), torch.randn(2, 3, 1, 4)
            same(fast(row, new, *caches), step(row, new, *theirs))
            same(list(caches), theirs)
    only(graphs=1, calls=4)
    assert backend.report()[0].updated_bytes == sum(cache.nbytes for cache in updated)


def put(row, new, keys):
    keys[:, :, row] = new
    return keys.sum(2)


def copy_index(row, new, keys):
    return keys.index_copy_(2, row, new).sum(2)


def scatter(row, new, keys):
    keys.scatter_(2, row.view(1, 1, 1, 1).expand(2, 3, 1, 4), new)
    return keys.sum(2)


def put_a_slice(row, new, keys):
    keys[:, :, 2:3] = new
    return keys.sum(2)


def put_of_one_batch(row, new, keys):
    keys[1, :, 4] = new[1, :, 0]
    return keys.sum(2)


def add_index(row, new, keys):
    return keys.index_add_(2, row, new).sum(2)


def read_before_and_after(row, new, keys):
    before = keys.sum(2, keepdim=True)
    keys.index_copy_(2, row, new + before)
    return keys.amax(2)


def put_of_each_batch(row, new, keys):
    keys[torch.arange(2), :, torch.cat((row, row - 4))] = new[:, :, 0]  # with an index of its own, one counted from behind
    return keys.sum(2)


def put_of_some_heads(row, new, keys):
    keys[:, torch.tensor([0, 2]), torch.cat((row, row + 1))] = new[:, :2, 0]
    return keys.sum(2)


def put_of_a_grid(row, new, keys):
    keys[torch.arange(2)[:, None], :, torch.cat((row, row + 2))[None, :]] = new[:, :, 0][:, None].expand(2, 2, 3, 4)
    return keys.sum(2)


def put_of_rows_and_columns(row, new, keys):
    keys[:, :, torch.cat((row, row + 1)), torch.tensor([3, 1])] += new[:, :, 0, :2]
    return keys.sum(2)


@pytest.mark.parametrize("step", [put, copy_index, scatter, put_a_slice, put_of_one_batch, add_index, read_before_and_after, put_of_each_batch,
                                  put_of_some_heads, put_of_a_grid, put_of_rows_and_columns])
def test_a_cache_is_updated_where_it_lies(step):
    keys = torch.randn(2, 3, 6, 4)
    stepped(step, keys, updated=[keys])


def test_caches_that_need_each_others_rows():
    def step(row, new, keys, values):
        old = keys.sum(2, keepdim=True)
        keys.index_copy_(2, row, new + values.sum(2, keepdim=True))
        values.index_copy_(2, row, old)
        return keys.sum(2) + values.sum(2)
    keys, values = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 4)
    stepped(step, keys, values, updated=[keys, values])


def test_a_change_of_a_cache_needs_both_values():
    def step(row, new, keys):
        old = keys.clone()
        keys.index_copy_(2, row, new)
        return keys - old
    stepped(step, torch.randn(2, 3, 6, 4), updated=[])


def test_a_choice_between_a_cache_and_new_rows_writes_all_of_it():
    def step(row, new, keys):
        keys.copy_(torch.where((torch.arange(6) == row).view(1, 1, 6, 1), new, keys))
        return keys.sum(2)
    stepped(step, torch.randn(2, 3, 6, 4), updated=[])


def test_an_answer_that_is_the_new_value_has_memory_of_its_own():
    def step(row, new, keys):
        now = keys.index_copy(2, row, new)
        keys.copy_(now)
        return now
    keys = torch.randn(2, 3, 6, 4)
    fast = compiled(step)
    with torch.no_grad():
        answers = [fast(torch.tensor([k]), torch.full((2, 3, 1, 4), float(k)), keys) for k in range(3)]
    for k, answer in enumerate(answers):
        assert (answer[:, :, k] == k).all() and (k == 2 or not (answer[:, :, 2] == 2).all())


def test_what_is_not_updated_of_a_cache_is_not_written():
    keys, fast = torch.randn(2, 3, 6, 4), compiled(copy_index, verify="never")
    with torch.no_grad():
        for k in range(2):
            fast(torch.tensor([k]), torch.zeros(2, 3, 1, 4), keys)
            version = keys._version
            fast(torch.tensor([k]), torch.zeros(2, 3, 1, 4), keys)
            assert keys._version > version  # as eager counts
    assert not keys[:, :, :2].any() and keys[:, :, 2:].all()


def test_verified_calls_write_a_cache_once():
    keys = torch.randn(2, 3, 6, 4)
    stepped(add_index, keys, updated=[keys], verify="always")


def test_caches_of_other_memory():
    wide = torch.randn(2, 3, 4, 6)
    stepped(copy_index, wide.transpose(2, 3), updated=[wide])  # is copied there and back



def test_parameters_that_change():
    model = Mlp()
    fast, x = compiled(model), torch.randn(2, 8)
    with torch.no_grad():
        for turn in range(3):
            same(fast(x), model(x))
            model.first.weight.mul_(1.5)
        model.load_state_dict(Mlp().state_dict())
        same(fast(x), model(x))
    assert backend.report()[0].compiled_calls == 4


def test_modules_of_one_class_share_a_graph():
    modules = [Mlp(), Mlp()]
    fast = torch.compile(lambda module, x: module(x), backend="obelisk", options={"threads": 1})
    with torch.no_grad():
        for turn in range(2):
            for module in modules:
                x = torch.randn(2, 8)
                same(fast(module, x), module(x))
    only(calls=4)
    assert sum(graph.programs for graph in backend.report()) == 2


def test_inference_mode():
    model, x = Mlp(), torch.randn(2, 8)
    with torch.inference_mode():
        same(compiled(model)(x), model(x))
        inner = Mlp()
        same(compiled(inner)(x), inner(x))
    only()


# ---- layouts and types ----
def test_strides_and_offsets():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU())
    fast = compiled(model)
    with torch.no_grad():
        for x in (torch.randn(2, 4, 9, 9), torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last), torch.randn(2, 4, 9, 19)[..., 1::2]):
            same(fast(x), model(x))
    only()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64", "bool"])
def test_element_types(dtype):
    dtype = getattr(torch, dtype)

    def f(x, y):
        if dtype == torch.bool:
            return x & y, x | ~y
        return x * y + x, torch.maximum(x, y), x > y, x.sum(), x.float() / 3, 1.5 - x

    with torch.no_grad():
        x, y = torch.randint(0, 5, (3, 7)).to(dtype), torch.randint(0, 2, (3, 7)).to(dtype)
        same(compiled(f)(x, y), f(x, y), 1e-3 if dtype in (torch.float16, torch.bfloat16) else 1e-6)
    only()


# ---- shapes ----
def test_a_program_whose_first_call_fails_has_a_second_chance(monkeypatch):
    """And is not compiled a third time."""
    calls, compiles = [], []
    run, compile_ = backend._backend._Program.__call__, backend._backend.CompiledGraph._compile

    def failing(self, *arguments, **options):
        calls.append(1)
        if len(calls) in fails:
            raise obelisk.Error("this call fails")
        return run(self, *arguments, **options)

    def counted(self, arguments):
        compiles.append(1)
        return compile_(self, arguments)
    monkeypatch.setattr(backend._backend._Program, "__call__", failing)
    monkeypatch.setattr(backend._backend.CompiledGraph, "_compile", counted)
    x = torch.randn(3, 4)
    for fails, state in (({1}, "compiled"), ({1, 2}, "eager")):
        calls.clear(), compiles.clear(), torch._dynamo.reset(), backend.reset()
        fast = torch.compile(lambda x: torch.tanh(x) + 1, backend="obelisk", options={"threads": 1})
        for _ in range(4):
            same(fast(x), torch.tanh(x) + 1)
        assert len(compiles) == 1 and len(calls) == (4 if state == "compiled" else 2)
        (graph,) = backend.report()
        assert graph.eager_calls == (1 if state == "compiled" else 4) and "a call failed" in next(iter(graph.reasons))


def test_tf32_follows_pytorchs_switches():
    from obelisk.torch._backend import _allows_tf32
    f32, f16, i64 = torch.zeros(2), torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.int64)
    before = torch.get_float32_matmul_precision()
    try:
        with torch.backends.cudnn.flags(allow_tf32=True):
            assert not _allows_tf32([f32])  # matrices are not allowed to
            torch.set_float32_matmul_precision("high")
            assert _allows_tf32([f32, i64])
            assert not _allows_tf32([f32, f16]) and not _allows_tf32([i64])
        with torch.backends.cudnn.flags(allow_tf32=False):
            assert not _allows_tf32([f32])
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_exporters_table_is_made_once(monkeypatch):
    """A copy of it is the same as a new one, and nothing of the exporter stays changed."""
    from obelisk.torch import _export
    from onnxscript.values import TracedOnnxFunction
    from torch.onnx._internal.exporter._registration import ONNXRegistry
    made, make, parsed = [], ONNXRegistry.__dict__["from_torchlib"], TracedOnnxFunction.__dict__["function_ir"]

    def counted(cls, *args, **kwargs):
        made.append((args, kwargs))
        return make.__get__(None, cls)(*args, **kwargs)
    counted = classmethod(counted)
    monkeypatch.setattr(ONNXRegistry, "from_torchlib", counted)
    monkeypatch.setattr(_export, "_translations", {})
    with torch.no_grad():
        for function in (torch.sin, torch.cos):
            same(compiled(lambda x: function(x) + 1, fallback=False)(torch.ones(3)), function(torch.ones(3)) + 1)
            torch._dynamo.reset()
    assert len(made) == 1 and ONNXRegistry.__dict__["from_torchlib"] is counted and TracedOnnxFunction.__dict__["function_ir"] is parsed
    args, kwargs = made[0]

    def known(registry):
        return {str(op): [(each.onnx_function, each.is_complex, str(each.signature)) for each in all_] for op, all_ in registry.functions.items()}
    (mine,) = _export._translations.values()
    assert known(mine) == known(make.__get__(None, ONNXRegistry)(*args, **kwargs)) and len(known(mine)) > 100


def test_no_cycles_are_searched_for_during_an_export():
    import gc
    from obelisk.torch._export import on_a_plain_thread
    assert gc.isenabled() and not on_a_plain_thread(gc.isenabled) and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        on_a_plain_thread(lambda: 1 // 0)
    assert gc.isenabled()
    gc.disable()
    try:
        assert not on_a_plain_thread(gc.isenabled) and not gc.isenabled()
    finally:
        gc.enable()


# ---- devices ----
def test_a_graph_runs_where_its_tensors_lie():
    from obelisk.torch._backend import _device_of
    from obelisk.torch._export import Refused
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode():
        matrix, number, position = torch.empty(2, 3, device="cuda:1"), torch.empty((), device="cuda:1"), torch.empty((), device="cpu")
        host, other = torch.empty(4), torch.empty(2, device="cuda:0")
    gpu, cpu = torch.device("cuda:1"), torch.device("cpu")
    assert _device_of([matrix, position], [host]) == gpu and _device_of([host, position], [matrix]) == cpu
    assert _device_of([number, position], [host]) == gpu
    for nothing in ([], [position]):  # the outputs alone say where
        assert _device_of(nothing, [matrix]) == _device_of(nothing, [host, number]) == gpu
        assert _device_of(nothing, [host]) == cpu
        with pytest.raises(Refused, match="cuda:0, cuda:1"):
            _device_of(nothing, [matrix, other])
    with pytest.raises(Refused, match="cpu, cuda:1"):
        _device_of([matrix, host], [matrix])


def test_a_graph_without_tensors_is_compiled_for_the_device_of_its_outputs(monkeypatch):
    """Like the relative positions of DeBERTa."""
    from obelisk.torch import _backend
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    targets = []

    def compile_exported(exported, options):
        targets.append(options["target"])
        raise _backend._export.Refused("enough is known")
    monkeypatch.setattr(_backend._export, "compile_exported", compile_exported)
    for device, target in (("cuda:0", "cuda:0"), ("cpu", "cpu")):
        with FakeTensorMode():
            graph = make_fx(lambda: (torch.arange(6, device=device).unsqueeze(0) * 2,))()
        whole = _backend.CompiledGraph(graph, "inference", _backend.Options(), set(), backend.Graph("inference", 3))
        with pytest.raises(_backend._export.Refused, match="enough"):
            whole._compile([])
        assert targets.pop() == target


def test_outputs_are_copied_to_their_device():
    from obelisk.torch import _backend, _export
    graph = torch.fx.symbolic_trace(lambda x: (x + 1, (x * 2).t()))
    exported, outputs = _export.export_static(graph, [torch.ones(2, 3)], [0], [])
    outputs = [outputs[0].to("meta"), outputs[1].to("meta")]
    program = _backend._Program(_export.compile_exported(exported, {"target": "cpu", "threads": 1}), [(exported.inputs[0], 0)], [torch.ones(2, 3)],
                                outputs, exported.memory)
    made = program([torch.ones(2, 3)])
    assert [(each.device.type, each.shape, each.stride()) for each in made] == [("meta", (2, 3), (3, 1)), ("meta", (3, 2), (1, 3))]
    for other in (torch.ones(2, 4), torch.ones(2, 2), torch.ones(3, 2), torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.int32)):
        with pytest.raises(obelisk.UsageError, match=r"torch.float32 \(2, 3\)"):  # it takes addresses, and must not read beyond
            program([other])


def test_a_program_for_each_shape():
    model = Mlp()
    fast = torch.compile(model, backend="obelisk", dynamic=True, options={"threads": 1})
    with torch.no_grad():
        for rows in (3, 5, 3, 7, 5):
            x = torch.randn(rows, 8)
            same(fast(x), model(x))
    only(graphs=1, calls=5)
    assert backend.report()[0].programs == 3


def test_numbers_as_arguments():
    def f(x, n, scale):
        return x[:, :n] * scale, x.shape[0] * n, n + 1

    fast = torch.compile(f, backend="obelisk", dynamic=True, options={"threads": 1, "programs": 2})
    with torch.no_grad():
        for rows, n, scale in ((4, 3, 0.5), (5, 2, 0.5), (5, 4, 2.5), (4, 3, 0.5)):
            x = torch.randn(rows, 6)
            same(fast(x, n, scale), f(x, n, scale))
    only()
    assert all(graph.programs <= 2 for graph in backend.report())


# ---- torch.export ----
def test_an_exported_program():
    model, x = Mlp(), torch.randn(3, 8)
    rows = torch.export.Dim("rows", min=1, max=64)
    for exported in (torch.export.export(model, (x,)), torch.export.export(model, (x,), dynamic_shapes=({0: rows},))):
        fast = obelisk.compile(exported, target="cpu", threads=1)
        assert isinstance(fast(x), torch.Tensor)
        same(fast(x), model(x).detach())
    x = torch.randn(9, 8)
    same(fast(x), model(x).detach())
    assert fast.programs == 2

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(2))

        def forward(self, x):
            self.n.add_(1)
            return x + self.n

    with pytest.raises(obelisk.UnsupportedError, match="'n'"):
        obelisk.compile(torch.export.export(Counts(), (torch.zeros(2),)), target="cpu")


# ---- training ----
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down, self.scores = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 5)

    def forward(self, words):
        x = self.table(words)
        q, k, v = self.project(self.norm1(x)).view(*words.shape, 3, 4, 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.scores(x.mean(1))


def convolutional():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.SiLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 3 * 3, 5))


@pytest.mark.parametrize("make, inputs", [(Encoder, lambda: torch.randint(0, 20, (4, 6))), (convolutional, lambda: torch.randn(4, 3, 16, 16))],
                         ids=["encoder", "convolutional"])
def test_loss_curves(make, inputs):
    mine, theirs = make(), make()
    theirs.load_state_dict(mine.state_dict())
    batches = [(inputs(), torch.randint(0, 5, (4,))) for _ in range(20)]
    curves = []
    for model, run in ((theirs, theirs), (mine, compiled(mine))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for x, wanted in batches:
            loss = nn.functional.cross_entropy(run(x), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=1e-4, atol=1e-4)
    assert len(set(curves[0])) == 20
    assert {graph.kind for graph in backend.report()} == {"forward", "backward"}
    only(graphs=2, calls=40)


def test_training_can_be_left_to_eager():
    model, x = Mlp(), torch.randn(2, 8)
    compiled(model, training=False)(x).sum().backward()
    assert model.first.weight.grad is not None
    assert all(graph.state == "eager" and "training" in next(iter(graph.reasons)) for graph in backend.report())
    with contextlib.suppress(AttributeError):
        assert backend.report().compiled == 0


@pytest.mark.parametrize("kind, causal, biased, key_heads", [
    *((kind, causal, None, heads) for kind in ("cudnn", "efficient", "flash") for causal, heads in ((False, 4), (True, 4), (False, 2))),
    *((kind, False, biased, 4) for kind in ("cudnn", "efficient") for biased in ("added", "seen"))])
def test_attention_of_a_gpu_is_decomposed(kind, causal, biased, key_heads):
    """What PyTorch takes on a GPU; the operators themselves want one."""
    from obelisk.torch import _decompositions
    decomposed = _decompositions.inference()[getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention").default]
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, key_heads, 5, 8), torch.randn(2, key_heads, 5, 8)
    bias = {None: None, "added": torch.randn(2, 4, 5, 5), "seen": torch.ones(5, 5, dtype=torch.bool).triu(-2)}[biased]
    if kind == "flash":
        made = decomposed(q, k, v, 0.0, causal)
        assert len(made) == 9 and made[1].shape == (2, 4, 5)
    else:
        made = decomposed(q, k, v, bias, False, 0.0, causal)
        assert len(made) == (9 if kind == "cudnn" else 4)
    wanted = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=key_heads != 4)
    same(made[0], wanted)


def test_histograms_of_integers():
    """PyTorch has them on a GPU only; on a CPU those of the same numbers in f64."""
    from obelisk.torch import _decompositions
    histogram = _decompositions.inference()[torch.ops.aten.histc.default]
    for kind in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        for bins, low, high in ((8, 0, 7), (4, 0, 3), (5, 2, 6), (1, 0, 1), (3, 0, 7), (16, 0, 7), (7, 1, 100), (100, 3, 60)):
            for shape in ((40, 2), (0,), (300,)):
                x = torch.randint(0 if kind == torch.uint8 else -3, 110, shape).to(kind)
                assert torch.equal(histogram(x, bins, low, high), torch.histc(x.double(), bins, low, high).to(kind))
            every = torch.arange(low, high + 1)  # the bounds of all bins
            made = histogram(every.to(kind), bins, low, high)
            assert torch.equal(made, torch.histc(every.double(), bins, low, high).to(kind)) and made.sum() == high - low + 1
    x = torch.randint(-3, 110, (40, 2)).int()
    with torch.no_grad():
        same(compiled(lambda x: (histogram(x, 4, 0, 3), histogram(x, 7, 1, 100)), fallback=False)(x),
             (torch.histc(x.double(), 4, 0, 3).int(), torch.histc(x.double(), 7, 1, 100).int()))
    only()


def test_what_is_not_decomposed_of_histograms():
    from obelisk.torch import _decompositions
    histogram = _decompositions.inference()[torch.ops.aten.histc.default]
    assert histogram(torch.ones(4), 4, 0, 3) is histogram(torch.ones(4, dtype=torch.int32), 4) is NotImplemented


def test_a_router_counts_the_tokens_of_its_experts():
    """As transformers does on a GPU."""
    from obelisk.torch import _decompositions
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def route(scores):
        experts = scores.topk(2, -1).indices
        return torch.histc(experts.reshape(-1).int(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
    with FakeTensorMode():
        graph = make_fx(route, decomposition_table=_decompositions.inference())(torch.empty(6, 4, device="cuda:0"))
    for node in list(graph.graph.nodes):
        assert node.target is not torch.ops.aten.histc.default
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    graph.recompile()
    scores = torch.randn(6, 4)
    wanted = torch.tensor([int((scores.topk(2, -1).indices <= expert).sum()) for expert in range(4)], dtype=torch.int32)
    with torch.no_grad():
        assert torch.equal(compiled(graph, fallback=False)(scores), wanted)
    only()


def by_groups(x, w, offs):
    out, begin = x.new_zeros(x.shape[0], w.shape[2]), 0
    for group, end in enumerate(offs.tolist()):
        out[begin:end], begin = x[begin:end] @ w[group], end
    return out


def test_products_of_groups_of_rows():
    """Mixtures of experts: PyTorch's operation, and transformers' own for where PyTorch has none."""
    torch.library.custom_op("transformers::grouped_mm_fallback", by_groups, mutates_args=(),
                            schema="(Tensor x, Tensor w, Tensor offs) -> Tensor").register_fake(lambda x, w, offs: x.new_empty(x.shape[0], w.shape[2]))
    ways = [(torch.ops.transformers.grouped_mm_fallback, torch.float32, 1e-5)]
    if hasattr(torch, "_grouped_mm"):  # Dynamo takes it of bf16 only
        ways.append((torch._grouped_mm, torch.bfloat16, 2e-2))
    for each, kind, tolerance in ways:
        w = torch.randn(4, 16, 24, dtype=kind)
        for ends in ((3, 3, 8, 10), (0, 0, 0, 10), (10, 10, 10, 10), (1, 2, 3, 4)):
            x, offs = torch.randn(10, 16, dtype=kind), torch.tensor(ends, dtype=torch.int32)
            with torch.no_grad():
                fast = compiled(lambda x, w, offs: each(x, w, offs).relu(), fallback=False)
                rows = ends[-1]  # those behind have no value in PyTorch's
                same(fast(x, w, offs)[:rows], by_groups(x, w, offs)[:rows].relu(), tolerance)
                x[0] = torch.nan  # which no other row sees
                assert torch.equal(fast(x, w, offs).isnan().any(-1), torch.arange(10) == 0)
        only()


def test_products_of_many_rows_by_groups_stay_with_pytorch():
    from obelisk.torch import _decompositions
    x, w, offs = torch.randn(300, 8), torch.randn(2, 8, 8), torch.tensor([100, 300])
    assert _decompositions._grouped_mm(x, w, offs) is _decompositions._grouped_mm(x[:4], w) is NotImplemented


# ---- on a GPU ----
if torch.cuda.is_available():
    def test_tensors_of_a_gpu_through_a_program_for_the_host():
        model = Mlp().cuda()
        fast = compiled(model, target="cpu")
        with torch.no_grad():
            for rows in (3, 3):
                x = torch.randn(rows, 8, device="cuda")
                same(fast(x), model(x), 1e-4)
                assert all(each.is_cuda for each in flat(fast(x)))
        only()

    @pytest.mark.parametrize("granularity", ["op", "stitch", "mono"])
    def test_caches_of_a_gpu_that_move(granularity):
        """One of them lies elsewhere with each call, zeros where it lay; the other stays."""
        def step(row, new, keys, values):
            keys.index_copy_(2, row, new)
            values.index_copy_(2, row, new * 2)
            return (keys @ values.transpose(2, 3)).softmax(-1) @ values

        fast = compiled(step, granularity=granularity)
        caches = [torch.zeros(2, 3, 8, 4, device="cuda") for _ in range(2)]
        theirs = [cache.clone() for cache in caches]
        with torch.no_grad():
            for position in range(8):
                row, new = torch.tensor([position], device="cuda"), torch.randn(2, 3, 1, 4, device="cuda")
                same(fast(row, new, *caches), step(row, new, *theirs), 1e-4)
                same(caches, theirs, 1e-6)
                old = caches[position % 2]
                caches[position % 2] = old.clone()
                old.zero_()
        only(graphs=1, calls=8)
        assert backend.report()[0].updated_bytes == sum(cache.nbytes for cache in caches)

    def test_a_call_in_a_cuda_graph_of_the_callers():
        model = Mlp().cuda()
        fast, x = compiled(model), torch.zeros(3, 8, device="cuda")
        with torch.no_grad():
            fast(x)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                fast(x)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                made = fast(x)
            for _ in range(3):
                x.copy_(torch.randn(3, 8))
                graph.replay()
                torch.cuda.synchronize()
                same(made, model(x), 1e-4)
