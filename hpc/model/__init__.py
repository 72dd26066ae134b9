"""What is asked for, what a trace and an outcome are: types, their files, and no process."""
