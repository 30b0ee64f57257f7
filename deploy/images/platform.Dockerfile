# Every service of the platform and the console in one image: `paceline up --only NAME` runs one of them.
FROM node:20-slim AS console
WORKDIR /build/web
COPY web/package.json web/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY web/ ./
RUN npm run --silent build

FROM python:3.11-slim AS packages
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY requirements.lock ./
RUN python -m venv /opt/paceline && /opt/paceline/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY contracts/ contracts/
COPY kernels/ kernels/
COPY services/ services/
RUN /opt/paceline/bin/pip install --no-cache-dir --no-deps ./contracts ./kernels ./services/runtime ./services/analysis ./services/platform

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/paceline paceline \
    && install -d -o paceline -g paceline -m 0700 /var/lib/paceline
COPY --from=packages /opt/paceline /opt/paceline
COPY --from=console /build/web/dist /usr/share/paceline/console
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PACELINE_HOME=/var/lib/paceline \
    PACELINE_API_CONSOLE_PATH=/usr/share/paceline/console
USER paceline
EXPOSE 8300 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["paceline"]
CMD ["up"]
