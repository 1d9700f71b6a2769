"""Measure: quantities with their spread, comparisons in turn, clocks, barriers, and memory."""
