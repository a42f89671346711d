"""What a transfer needs at each of its ends, in plain Python 3.7 with its standard library alone.

The worker imports these modules for its own files; the machine is sent their source and runs
`serve`, so nothing has to be installed there.
"""
