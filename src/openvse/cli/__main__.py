"""``python -m openvse.cli``, which process launchers need."""

from __future__ import annotations

from openvse.cli import main

if __name__ == "__main__":
    main()
