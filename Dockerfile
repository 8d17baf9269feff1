# The package with what serving and training on tables need. No test builds it.
#
#     docker build -t mindspore-trainer .
#     docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" mindspore-trainer fit visits.yaml
#     docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" -p 8080:8080 -e TRAINER_SERVE_TOKEN mindspore-trainer serve runs/visits --host 0.0.0.0
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY requirements.lock setup.cfg setup.py pyproject.toml README.md LICENSE ./
COPY trainer trainer
COPY callbacks callbacks
COPY mindspore_trainer mindspore_trainer
# `-c`: of the versions in the lock, those of what is asked for
RUN sed -e '/--hash=/d' -e 's/ \\$//' requirements.lock > constraints.txt \
    && pip install --no-cache-dir -c constraints.txt ".[arrow,pandas,redis,kafka,serve,report,sweep,prometheus]"
RUN useradd --create-home trainer
USER trainer
WORKDIR /work
ENTRYPOINT ["trainer"]
CMD ["--help"]
