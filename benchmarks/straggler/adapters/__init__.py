"""One file for each tool: the hooks that it needs in the script, its launcher, and its answer.

An adapter has `answer(folder, ranks)`, which gives verdict, findings and text; as far as the tool needs them it has
`ToolHooks`, `environment(python)`, `command(python, training, folder)`, which starts a rank, and `beside(python, ranks,
folder, port)`, which runs beside them. It imports its tool inside functions: what starts the trainings has none.
`python adapters/NAME.py FOLDER RANKS` prints the answer.
"""
