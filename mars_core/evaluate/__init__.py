"""How good a model is under a way of decoding: lm-evaluation-harness, held-out likelihood, agreement with AR.

Only `adapter`, `quality` and `task_files` need lm-eval, and are imported when a task is asked for.
"""
