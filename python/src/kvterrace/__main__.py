# SPDX-License-Identifier: Apache-2.0
"""`python -m kvterrace` is the command `kvterrace`: a wheel carries it, a build has it two folders
above the package."""

import os
import shutil
import sys


def command_path():
    """The program, or None: KVTERRACE names it, the package has it, or the path."""
    folder = os.path.dirname(os.path.abspath(__file__))
    for path in (os.environ.get("KVTERRACE"), os.path.join(folder, "_command", "kvterrace"),
                 os.path.join(os.path.dirname(os.path.dirname(folder)), "kvterrace")):
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    # The script that a wheel installs is not meant: it would come back here.
    found = shutil.which("kvterrace")
    return found if found and os.path.realpath(found) != os.path.realpath(sys.argv[0]) else None


def main():
    path = command_path()
    if path is None:
        sys.exit("kvterrace: the command is not in this package and not on the path")
    os.execv(path, ["kvterrace", *sys.argv[1:]])


if __name__ == "__main__":
    main()
