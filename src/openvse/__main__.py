"""``python -m openvse``, for a shell that does not find the ``openvse`` command."""

from openvse.cli import main

if __name__ == "__main__":
    main()
