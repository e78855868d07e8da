"""Where past tokens live: block pool, block tables, radix tree, fork."""
