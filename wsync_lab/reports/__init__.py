"""Executed notebooks and records as reports: one HTML file that needs nothing else, and Markdown."""
