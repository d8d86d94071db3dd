"""The package's extras, by the libraries that they bring."""

from __future__ import annotations

from typing import Final

from bookwarden.errors import MissingExtraError

# By imported module; setup.cfg has the distributions.
EXTRA_OF: Final = {
    "jinja2": "spark",
    "numpy": "spark",
    "pandas": "spark",
    "prometheus_client": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "grpc": "oxia",
    "xxhash": "oxia",
    "boto3": "s3",
    "botocore": "s3",
    "google.api_core": "gcs",
    "google.auth": "gcs",
    "google.cloud.storage": "gcs",
    "azure.core": "azure",
    "azure.identity": "azure",
    "azure.storage.blob": "azure",
    "fastapi": "serve",
    "uvicorn": "serve",
    "flask": "demo",
    "flask_cors": "demo",
    "moto": "demo",
}


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the extra to install after a failed import; None for a module that no extra brings."""
    name = error.name or ""
    for package, extra in EXTRA_OF.items():
        if f"{name}.".startswith(f"{package}.") or f"{package}.".startswith(f"{name}."):
            return MissingExtraError(f"this needs the Python package {name}: pip install 'bookwarden[{extra}]'")
    return None
