# The node agent. Share its socket folder with the training containers of the node and let it see their
# processes (one pid namespace); it needs no root and no other privilege.
FROM python:3.11-slim AS packages
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY requirements.lock ./
RUN python -m venv /opt/paceline && /opt/paceline/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY contracts/ contracts/
COPY kernels/ kernels/
COPY agents/node/ agents/node/
COPY services/runtime/ services/runtime/
COPY services/analysis/ services/analysis/
RUN /opt/paceline/bin/pip install --no-cache-dir --no-deps ./contracts ./kernels ./services/runtime ./services/analysis ./agents/node

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/paceline paceline \
    && install -d -o paceline -g paceline -m 0700 /var/lib/paceline
COPY --from=packages /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PACELINE_HOME=/var/lib/paceline \
    PACELINE_AGENT_SOCKET=/run/paceline/agent.sock
USER paceline
VOLUME ["/run/paceline", "/var/lib/paceline"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["paceline", "agent"]
