"""Runs a Python program whose Triton kernels tune themselves, and compiles a kernel's candidates on all cores at once.

    python3 parallel_autotune.py PROGRAM [ARGUMENTS...]

Triton compiles one candidate after another: minutes for the kernels of flash-linear-attention. What is measured and
chosen stays the same. A candidate that does not compile here is left to Triton, which says why.
"""

import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor

from triton.runtime.autotuner import Autotuner

threads = ThreadPoolExecutor(os.cpu_count())
measure = Autotuner._bench


def compile_then_measure(self, *args, config, **meta):
    def compile_candidate(candidate):
        try:
            self.fn.run(*args, **{**meta, "warmup": True, **candidate.all_kwargs()})
        except Exception:
            pass

    if getattr(self, "compiled_for", None) is not self.nargs:  # a new object in each search
        self.compiled_for = self.nargs
        list(threads.map(compile_candidate, self.prune_configs(meta)))
    return measure(self, *args, config=config, **meta)


Autotuner._bench = compile_then_measure
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
