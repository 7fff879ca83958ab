"""One exact step, one loop, and what a run keeps on disk; knows neither data sets nor HTTP."""
