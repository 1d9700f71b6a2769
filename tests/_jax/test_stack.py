import functools
import gc
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest

from d2lpar._jax import stack
from d2lpar._jax.stack import belongs_to_the_user, may_dispatch, owner_of, sample_stack
from d2lpar._watch import report


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/me/train.py", "user"),
        ("/env/lib/python3.11/site-packages/flax/nnx/module.py", "library"),
        ("/usr/lib/python3/dist-packages/six.py", "library"),
        ("<attrs generated methods __main__.Row>", "generated"),
        ("<frozen runpy>", "generated"),
        ("<stdin>", "user"),
        ("<timed exec>", "user"),
        (jax.__file__, "jax"),
        (np.__file__, "numpy"),
        (threading.__file__, "stdlib"),
        (stack.__file__, "d2lpar"),
        (report.__file__, "d2lpar"),  # In another folder of the package.
    ],
)
def test_a_line_is_the_readers_if_no_library_and_no_generator_has_written_it(file, owner):
    assert owner_of(file) == owner


def test_a_package_is_known_in_any_folder_by_its_list_of_files(monkeypatch, tmp_path):
    # An editable install, as `mine`, lists no file of its own but a .pth.
    for listed in ("flax/nnx/module.py", "six.py", "jax/numpy/einsum.py", "_mine.pth"):
        (metadata := tmp_path / f"{listed[:3]}-1.0.dist-info").mkdir()
        (metadata / "RECORD").write_text(f"{listed},sha256=abc,1\n{metadata.name}/RECORD,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    owners = {"flax/nnx/module.py": "library", "six.py": "library", "jax/numpy/einsum.py": "jax"}
    owners |= {"train.py": "user", "mine/loop.py": "user"}
    assert {file: owner_of(str(tmp_path / file)) for file in owners} == owners
    monkeypatch.setattr(stack, "_projects", set())
    belongs_to_the_user("flax")  # As for those who have written it, and installed it.
    assert owner_of(str(tmp_path / "flax/nnx/module.py")) == "user"


def here():
    return sample_stack(sys._getframe(1))


def test_a_line_knows_who_called_it_and_whether_it_is_in_a_loop():
    def line():
        return here()

    for _ in range(1):
        sample = line()
    assert sample.position.place.code == "return here()"
    assert not sample.position.lies_in(stack.LOOPS)
    assert sample.callers[0].place.code == "sample = line()"
    assert sample.callers[0].lies_in(stack.LOOPS)
    assert not sample.callers[0].lies_in(stack.COMPREHENSIONS)


def test_a_thread_that_goes_on_while_it_is_looked_at_stops_nobody():
    users = iter([sys._getframe()])

    class Returning:
        """A frame in JAX that can be left once only, as one of a thread that goes on."""

        f_code, f_lasti, f_globals = compile("pass", jax.__file__, "exec"), 0, {}
        f_back = property(lambda self: next(users, None))

    frame = Returning()
    assert sample_stack(frame).activity == "jax"
    assert sample_stack(frame) is None  # It has returned from everything.


def test_a_place_is_called_by_its_file_and_a_cell_of_a_notebook_by_its_number(monkeypatch):
    def place_in(file):
        names = {"here": here}
        exec(compile("\nat = here()", file, "exec"), names)
        return str(names["at"].position.place)

    assert place_in("/home/me/gone.py") == "/home/me/gone.py:2"
    file = "/tmp/ipykernel_17/2718281828.py"
    assert place_in(file) == "a cell, line 2"
    history = SimpleNamespace(input_hist_raw=["", "x = 1", "%%time\nfirst\nat = here()"])
    compiler = SimpleNamespace(_filename_map={file: 1})
    shell = SimpleNamespace(compile=compiler, history_manager=history)
    monkeypatch.setattr(stack, "_shell", lambda: shell)
    assert place_in(file) == "In [1], line 2"
    assert place_in("<timed exec>") == "In [2], line 2"


step = jax.jit(lambda x: x + 1)


@pytest.mark.parametrize(
    ("call", "doing", "hands_over"),
    [
        ("step(x)", "jax", True),  # A global variable that is of JAX.
        ("jnp.dot(x, x)", "jax", True),
        ("model.step(x)", "jax", True),  # Of a module, or of an object.
        ("trainer.step(x)", "jax", True),
        ("with_rate(x)", "jax", True),  # A functools.partial.
        ("steps[0](x)", "call", True),  # Any name that cannot be looked up.
        ("train_step(x)", "call", True),  # A local variable may be anything.
        ("time.sleep(1)", "sleeps", False),
        ("wait_at_barrier(key, 9)", "barrier", False),  # In `barrier`, of JAX's client.
        ("jaxopt.step(x)", "call", False),  # Another package, whose code has frames of its own.
        ("print(x)", "call", False),
        ("x.item()", "call", False),
        ("y", "python", False),
        ("print('a * (b')", "call", False),
    ],
)
def test_a_call_hands_work_to_a_device_unless_it_is_known_to_be_something_else(
    call, doing, hands_over, monkeypatch
):
    monkeypatch.setattr(stack, "_source_of", lambda file, line: call)
    names = {"step": step, "jnp": jax.numpy, "time": time}
    names |= {"model": ModuleType("model"), "trainer": SimpleNamespace(step=step)}
    names["model"].step, names["with_rate"] = step, functools.partial(step)
    names["jaxopt"] = ModuleType("jaxopt")
    names["jaxopt"].step = lambda x: x
    code = compile(call, "/home/me/train.py", "eval")
    # The call is the last instruction whose source range is the whole expression.
    last = [n for n, at in enumerate(code.co_positions()) if at[3] == len(call) and at[2] == 0][-1]
    frame = SimpleNamespace(f_code=code, f_lasti=2 * last, f_globals=names, f_back=None)
    sample = sample_stack(frame)
    assert sample.activity == doing
    assert may_dispatch(sample, names) == hands_over


def test_frames_of_another_thread_are_read_while_no_garbage_is_collected(monkeypatch):
    collects = []

    class Frame:
        f_back = property(lambda self: collects.append(gc.isenabled()))

    monkeypatch.setattr(sys, "_current_frames", lambda: collects.append(gc.isenabled()) or {})
    assert [*stack.current_frames(), *stack.frames_outward(frame := Frame())] == [frame]
    assert collects == [sys.version_info >= (3, 12)] * 2  # Only Python 3.11 may crash there.
    assert gc.isenabled()
