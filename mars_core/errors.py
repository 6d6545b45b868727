"""The one exception class whose message is written for the person at the keyboard."""


class MarsError(ValueError):
    """Something the user gave cannot work; the message says what was given, what is allowed and what to do.

    Command line and page show the message alone, without a traceback.
    """
