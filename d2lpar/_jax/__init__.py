"""Where d2lpar touches JAX: its devices, profiler, reads, stacks, and all its private names.

Private names (`jax._src`) are used in `state`, `profiler`, `reads`, `compile_requests` and
`distributed`, nowhere else; `stack` knows private functions of JAX by their names in a traceback.
"""
