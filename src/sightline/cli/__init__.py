"""The command line: a command is a function with options. Only this package knows of typer."""
