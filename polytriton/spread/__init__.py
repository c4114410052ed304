"""Who works a run's tasks: this process (`local`), worker processes (`processes`), or a Ray cluster (`cluster`)."""
