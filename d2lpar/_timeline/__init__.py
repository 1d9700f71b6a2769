"""Timelines and graphs: record which device ran what and when, and draw it."""
