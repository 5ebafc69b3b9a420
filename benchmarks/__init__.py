"""How fast endstop is beside a hand-written loop and beside other agent libraries: `make bench`."""
