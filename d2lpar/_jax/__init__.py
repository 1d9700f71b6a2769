"""Where d2lpar touches JAX: its devices, profiler, reads, stacks, and all its private names.

Private names (`jax._src`) are used in `state`, `profiler`, `reads`, `requests` and `distributed`,
nowhere else.
"""
