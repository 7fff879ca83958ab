"""All the News: from CSV files of articles to blocks of tokens on disk, and from there into training."""
