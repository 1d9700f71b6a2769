"""Watch a program: which of its lines keep the device waiting, and which lines may not."""
