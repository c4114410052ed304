"""What a test's child runs as it starts (tests.processes.quick_environment)."""

import quick_interpreter  # noqa: F401
