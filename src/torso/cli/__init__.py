"""The command line: assembles the rooms; one file a command."""
