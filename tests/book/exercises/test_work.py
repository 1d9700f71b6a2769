"""What a machine cannot show, a check does not judge."""

import jax

from d2lpar.book import exercises

BEHAVIOUR = ["X2", "X4", "X5", "Y1", "Y3", "Y5", "Z1", "Z3"]


def test_inside_a_recording_of_the_reader_what_needs_one_cannot_be_checked(tmp_path):
    with jax.profiler.trace(tmp_path):
        reports = [
            exercises.check_y1(lambda multiply, matrices: list(map(multiply, matrices))),
            exercises.check_y4(lambda timeline, row: (0.0, 0.0, 0.0)),
        ]
    assert [report.verdict for report in reports] == ["untestable"] * 2
    assert all("a recording is under way" in report.saw for report in reports)


def test_without_asynchronous_dispatch_behaviour_cannot_be_checked(run_python):
    program = f"""
import jax
jax.config.update("jax_cpu_enable_async_dispatch", False)
from d2lpar.book import exercises
from d2lpar import use_cpu_devices
use_cpu_devices(2)
for name in {[name.lower() for name in BEHAVIOUR]}:
    check = getattr(exercises, "check_" + name)
    report = check(*[lambda *args: 1 / 0] * (2 if name == "x4" else 1))
    assert "Restart Python without jax_cpu_enable_async_dispatch=False" in report.saw, report
    assert report.look == ""
    print(report.exercise, report.verdict)
"""
    expected = [f"{name} untestable" for name in BEHAVIOUR]
    assert run_python(program).splitlines() == expected


def test_on_a_single_device_those_for_two_say_how_to_get_another(run_python):
    program = """
from d2lpar.book import exercises
for check in exercises.check_y3, exercises.check_y5:
    report = check(lambda *args: 1 / 0)
    assert "two CPU devices" in report.saw, report
    assert "Call d2lpar.use_cpu_devices(2) before anything else of JAX" in report.saw, report
    print(report.exercise, report.verdict)
"""
    printed = run_python(program, JAX_NUM_CPU_DEVICES="1")
    assert printed.splitlines() == ["Y3 untestable", "Y5 untestable"]


def test_whoever_deletes_a_result_does_not_end_python(run_python):
    program = """
from d2lpar.book import exercises

def my_second(start):
    results = start()
    jax.block_until_ready(results[1])
    results[0].delete()
    return results[1]

print(exercises.check_x4(my_second, lambda start: jax.block_until_ready(start())).verdict)
"""
    assert run_python(program) == "not yet"
