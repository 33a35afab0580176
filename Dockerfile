# PostgreSQL with pgwarp:
#
#   docker build -t pgwarp .
#   docker run -d --name pgwarp -p 5432:5432 -e POSTGRES_PASSWORD=secret \
#       -v pgwarp:/var/lib/postgresql/data --shm-size=1g pgwarp
#   PGPASSWORD=secret psql -h localhost -U postgres       or: docker exec -it -u postgres pgwarp psql
#
# For GPUs, from an image of Debian or Ubuntu with the CUDA toolkit, on a host with NVIDIA's container
# toolkit:
#
#   docker build -t pgwarp:cuda --build-arg BASE=... --build-arg CUDA=ON .
#   docker run --gpus all ...
#
# The files of the extension alone, as CloudNativePG mounts them into its own images of PostgreSQL (18
# and later): --target extension, with BASE the image of PostgreSQL that they are for.
#
# PG_MAJOR is a version of PostgreSQL that BASE has, or has packages of.
ARG BASE=debian:12

FROM ${BASE} AS build
ARG PG_MAJOR=15
ARG CUDA=OFF
ENV DEBIAN_FRONTEND=noninteractive
USER root
RUN apt-get update && apt-get install -y --no-install-recommends \
    g++ make cmake libhwy-dev postgresql-server-dev-${PG_MAJOR}
COPY . /pgwarp
RUN make -C /pgwarp PG_CONFIG=/usr/lib/postgresql/${PG_MAJOR}/bin/pg_config CUDA=${CUDA} DESTDIR=/installed install
# The libraries that images of PostgreSQL lack.
RUN mkdir -p /extension/share /extension/lib /extension/system && \
    cp -r /installed/usr/share/postgresql/${PG_MAJOR}/extension /extension/share/ && \
    cp /installed/usr/lib/postgresql/${PG_MAJOR}/lib/*.so /extension/lib/ && \
    cp -L /usr/lib/*-linux-gnu/libhwy.so.1 /usr/lib/*-linux-gnu/libhwy_contrib.so.1 /extension/system/

FROM scratch AS extension
COPY --from=build /extension/ /

FROM ${BASE} AS server
ARG PG_MAJOR=15
ENV DEBIAN_FRONTEND=noninteractive
USER root
# No cluster of Debian's: the volume has one.
RUN mkdir -p /etc/postgresql-common/createcluster.d && \
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/pgwarp.conf && \
    apt-get update && apt-get install -y --no-install-recommends \
    postgresql-${PG_MAJOR} libhwy1 libopenblas0-serial && rm -rf /var/lib/apt/lists/*
COPY --from=build /installed/ /
COPY docker/entrypoint /usr/local/bin/pgwarp-entrypoint
ENV PATH=/usr/lib/postgresql/${PG_MAJOR}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV PGDATA=/var/lib/postgresql/data/pgdata
RUN mkdir -p /var/lib/postgresql/data /run/postgresql && \
    chown postgres:postgres /var/lib/postgresql/data /run/postgresql
VOLUME /var/lib/postgresql/data
USER postgres
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["/usr/local/bin/pgwarp-entrypoint"]
