"""``python -m pyro_dgp``, the command ``pyro-dgp``."""

import sys

from pyro_dgp.cli import main

if __name__ == "__main__":
    sys.exit(main())
