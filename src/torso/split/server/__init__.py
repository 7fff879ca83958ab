"""The body server: lends the middle blocks to jobs; sees neither tokens nor labels."""
