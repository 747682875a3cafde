"""Records as tables: DataFrames to draw from, and Markdown to read. Free of torch."""
