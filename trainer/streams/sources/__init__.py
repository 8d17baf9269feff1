"""One file per source: folders of files, Redis, Kafka, replay, iterables, joins."""
