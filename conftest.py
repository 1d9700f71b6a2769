"""Give the tests and the examples in docstrings the three CPU devices that some of them need."""

from d2lpar import use_cpu_devices

use_cpu_devices(3)
