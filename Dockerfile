# Measure a host from a container, or serve the dashboard: docs/container.md has the commands and the privileges.
FROM python:3.12-slim

LABEL org.opencontainers.image.title="wattloop" \
      org.opencontainers.image.description="Measure the energy of deep-learning training" \
      org.opencontainers.image.licenses="Apache-2.0"

WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE constraints.txt ./
COPY src ./src
# Extras that need no compiler; training frameworks belong into an image of your own.
# What is installed is this folder, which has no version to pin; constraints.txt pins the rest.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --constraint constraints.txt '.[serve,parquet,postgres,kubernetes,visa]' \
    && rm -rf /src

# The host's trees are mounted here (read-only), and runs are kept in a volume.
ENV WATTLOOP_SYSFS_ROOT=/host/sys \
    WATTLOOP_PROCFS_ROOT=/host/proc \
    WATTLOOP_STORE=/data/runs.db
VOLUME /data
EXPOSE 8765
COPY scripts/healthcheck.py /usr/local/lib/wattloop-healthcheck.py
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s \
    CMD ["python", "/usr/local/lib/wattloop-healthcheck.py"]
WORKDIR /project

ENTRYPOINT ["wattloop"]
CMD ["devices"]
