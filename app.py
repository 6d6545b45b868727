"""The entry: ``python app.py``, from any directory. What Hugging Face Spaces runs too.

Beside the package ``app/`` this file is never imported as ``app``: a package comes first.
"""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

if __name__ == "__main__":
    # Importing what the app needs takes seconds, in which Ctrl-C must not end in a traceback. `main` then
    # sets a handler of its own.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from app.main import main

    sys.exit(main())
