"""Stream sources, one module each: files, Redis, Kafka, replay, iterables, joins."""
