"""The operators, one a file, in the order in which an export needs them."""
