"""`python -m leadline` is `leadline`."""

import sys

from leadline.cli import main

sys.exit(main())
