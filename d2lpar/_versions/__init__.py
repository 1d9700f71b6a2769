"""Compare two versions of a program: two commits in turn, or two files of measurements."""
