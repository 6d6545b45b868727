"""lm-eval's tasks, read from local files: the YAML files in ``tasks`` say what differs from the stock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml  # 0.4.13: the one reader that knows `!function`

from ..errors import MarsError
from .names import data_file, definition

_STOCK = Path(lm_eval.tasks.__file__).parent


@contextmanager
def open_task(name: str, data_dir: Path) -> Iterator[ConfigurableTask]:
    """A task, while its data stand in a directory of their own (nothing is left in the user's cache).

    Raises:
        MarsError: its file is missing or holds something else.
    """
    ours, file = definition(name), data_file(name, data_dir)
    config = load_yaml(_STOCK / ours["stock"]) | ours
    for key in ("stock", "file", "tag"):
        config.pop(key, None)
    with TemporaryDirectory(prefix="mars_evaluate_") as cache:
        config["dataset_kwargs"] = {"data_files": {"test": str(file)}, "cache_dir": cache}
        try:
            task = ConfigurableTask(config=config)
        except Exception as error:  # of json, pyarrow, datasets, jinja2
            raise MarsError(
                f"{file} does not hold what the task {name} ({ours['stock']}) needs, a JSON object a line: "
                f"{error}."
            ) from error
        yield task
