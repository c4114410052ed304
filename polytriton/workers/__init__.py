"""Work done in other processes: a process that answers (`process.py`, its far end `far.py`), and several of them (`pool.py`)."""
