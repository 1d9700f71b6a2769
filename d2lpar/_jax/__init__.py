"""Where d2lpar touches JAX: its devices, profiler, reads, stacks, and all its private names."""
