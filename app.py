"""The entry: ``python app.py``, from any directory. What Hugging Face Spaces runs too.

Beside the package ``app/`` this file is never imported as ``app``: a package comes first.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from app.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
