"""The machine under the process: command lines, other programs, whole files, text of others, versions."""
