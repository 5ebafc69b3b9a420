#!/bin/sh
# Prints the path of the newest Python of this machine; prints nothing where $PYTHON is as new.
python=${PYTHON:-python3}
for minor in 14 13 12; do
    "$python" -c "import sys; sys.exit(sys.version_info < (3, $minor))" && exit 0
    for candidate in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            exit 0
        fi
    done
done
