"""One file for each tool: the hooks that it needs in the script, its launcher, and its answer.

An adapter has `answer(folder, ranks)`, which gives verdict, findings and text; as far as the tool needs them it has
`ToolHooks`, `environment(python)`, and `command(python, training, folder)` of one rank or `launcher(python, training,
ranks, folder, port)` of all. It imports its tool inside functions: what starts the trainings has none of them.
`python adapters/NAME.py FOLDER RANKS` prints the answer.
"""
