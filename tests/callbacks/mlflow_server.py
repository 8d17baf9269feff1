"""MLflow's own tracking server, as a process: ``python mlflow_server.py DATABASE_URI ARTIFACTS PORT``."""

import os
import sys

if __name__ == "__main__":
    os.environ |= {"_MLFLOW_SERVER_FILE_STORE": sys.argv[1], "_MLFLOW_SERVER_ARTIFACT_ROOT": sys.argv[2]}
    from mlflow.server import app

    app.run("127.0.0.1", int(sys.argv[3]))
