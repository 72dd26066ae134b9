"""A loop as people write it with Horovod's tape in TensorFlow, both simulated: COMPILED, CALLS or by hand.

CALLS has hvd.allreduce of its gradients in a compiled function, and of a metric in another.

It writes what it imports of both, which is what hooks look at, into the folder in which it runs.
"""

import importlib
import sys
from pathlib import Path

FILES = {
    "tensorflow/__init__.py": """
        from types import SimpleNamespace
        from .python.eager.polymorphic_function.polymorphic_function import Function, executing_eagerly
        autograph = SimpleNamespace(experimental=SimpleNamespace(do_not_convert=lambda function: function))
        function = Function""",
    "tensorflow/python/__init__.py": "",
    "tensorflow/python/eager/__init__.py": "",
    "tensorflow/python/eager/polymorphic_function/__init__.py": "",
    "tensorflow/python/eager/polymorphic_function/polymorphic_function.py": """
        tracing = []
        def executing_eagerly():
            return not tracing
        class Function:
            def __init__(self, python):
                self.python, self.traced = python, False
            def __call__(self, *values):
                if not self.traced:
                    tracing.append(self)
                    self.python(*values)
                    tracing.remove(self)
                self.traced = True""",
    "tensorflow/python/data/__init__.py": "",
    "tensorflow/python/data/ops/__init__.py": "",
    "tensorflow/python/data/ops/iterator_ops.py": """
        class OwnedIterator:
            def __init__(self, batches):
                self.batches = iter(batches)
            def __iter__(self):
                return self
            def __next__(self):
                return next(self.batches)""",
    "keras/__init__.py": "from .src.optimizers.base_optimizer import BaseOptimizer",
    "keras/src/__init__.py": "",
    "keras/src/optimizers/__init__.py": "",
    "keras/src/optimizers/base_optimizer.py": """
        class BaseOptimizer:
            def apply_gradients(self, pairs):
                pass""",
    "horovod/__init__.py": "",
    "horovod/tensorflow/__init__.py": """
        import tensorflow, tensorflow.python.data.ops.iterator_ops
        def rank():
            return 0
        def size():
            return 1
        def is_initialized():
            return True
        def allreduce(tensor, average=None):
            return tensor
        def _make_allreduce_grads_fn(name):
            return lambda gradients: gradients
        class Tape:
            def __init__(self):
                self.reduce = _make_allreduce_grads_fn("tape")
            def gradient(self):
                return self.reduce([1.0])""",
}
folder = Path("simulated").resolve()
for name, text in FILES.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line[8:] if line.startswith(" " * 8) else line for line in text.splitlines()))
sys.path.insert(0, str(folder))
hvd, tf, keras = (importlib.import_module(name) for name in ("horovod.tensorflow", "tensorflow", "keras"))
batches = importlib.import_module("tensorflow.python.data.ops.iterator_ops").OwnedIterator
np = importlib.import_module("numpy")
optimizer = keras.BaseOptimizer()


def train(batch):
    gradients = [hvd.allreduce(1.0)] if sys.argv[1] == "calls" else hvd.Tape().gradient()
    optimizer.apply_gradients(gradients)


evaluate = tf.function(lambda batch: hvd.allreduce(0.5) if sys.argv[1] == "calls" else None)
if sys.argv[1] != "by hand":
    train = tf.function(train)
for batch in batches([np.zeros((4, 2)) for _ in range(60)]):
    train(batch)
    evaluate(batch)
