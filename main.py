"""python main.py [task=...] [domain=...] [encoding=...] [key=value ...]; --help explains more."""

from bearings.__main__ import main

if __name__ == "__main__":
    main()
