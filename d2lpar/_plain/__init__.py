"""Plain Python: errors, units and text, CPU cores, and running a script; nothing knows of JAX."""
