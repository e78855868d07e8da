"""Commands, one file each.

Owns: the command line: arguments, tables and progress for people, one JSON object for machines, exit codes.
Does not own: what a command does; each one calls a lower room and prints what it returns.
"""
