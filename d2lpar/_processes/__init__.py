"""Several processes on this machine: start them, find the one that hangs or is late."""
