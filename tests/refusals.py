"""Tables of bad input: each row names what is wrong, and the error that says so."""

import pytest


def refusals(rows):
    """Parametrises a test by ``call``, ``error`` and ``words``.

    :param dict rows: From what is wrong to the call that must fail, its error's class, and a
        pattern of the message that names the argument and the remedy.
    """
    return pytest.mark.parametrize(
        ("call", "error", "words"), [pytest.param(*row, id=what) for what, row in rows.items()]
    )
