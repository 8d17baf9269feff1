"""Train on several processes: start them, connect them and let them agree."""
