"""A small real run and the tools to export it, on a machine without a GPU."""
