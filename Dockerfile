# The service with its embedded store; its data is in /data. With DEFERD_REDIS_URL it uses an external store instead.
# Others reach a container, so it wants keys (DEFERD_KEYS_FILE or DEFERD_KEYS, see `deferd key new`), or
# DEFERD_INSECURE=true where only you do: docker run -e DEFERD_INSECURE=true -p 127.0.0.1:8000:8000 deferd

FROM python:3.13-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8 AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/deferd && python -m venv /opt/build
WORKDIR /build
# The libraries change rarely and the source often, so each has a layer.
COPY requirements.lock requirements-build.lock ./
RUN /opt/deferd/bin/pip install --quiet --require-hashes --requirement requirements.lock \
    && /opt/build/bin/pip install --quiet --require-hashes --requirement requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
# With the build backend that is pinned: build isolation would download the newest one.
RUN /opt/build/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir wheel . \
    && /opt/deferd/bin/pip install --quiet --no-index --no-deps wheel/*.whl

FROM python:3.13-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8
ENV PATH=/opt/deferd/bin:$PATH \
    PYTHONUNBUFFERED=1
# The embedded store uses it: libc's allocator would take up to half of its CPU time.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libjemalloc2=5.3.0-1 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin deferd \
    && install --directory --owner=deferd --group=deferd --mode=0700 /data
COPY --from=build /opt/deferd /opt/deferd
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
# scripts/image passes both.
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="deferd" \
      org.opencontainers.image.description="A delayed-job service with its store embedded" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('DEFERD_PORT', '8000')), timeout=2); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
CMD ["deferd", "serve", "--host", "0.0.0.0", "--data-dir", "/data"]
