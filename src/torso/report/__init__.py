"""What people see of a run: progress, summary, plots and one HTML page, all read from its run directory."""
