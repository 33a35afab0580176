# Two commands for everybody:  make demo   make test
# The plain PGXS flow:         make && make install && make installcheck
#
# extension/ is compiled by PGXS, kernels/ by CMake into a static library that pgwarp.so links.

EXTENSION = pgwarp
MODULE_big = pgwarp
DATA = $(wildcard sql/pgwarp--*.sql)
OBJS = $(patsubst %.cpp,%.o,$(sort $(wildcard extension/*.cpp)))

REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --outputdir=test --load-extension=pgwarp
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --outputdir=test/output_iso --load-extension=pgwarp

BUILD ?= build
KERNELS = $(BUILD)/kernels/libpgwarp_kernels.a
PG_CONFIG ?= $(firstword $(wildcard /usr/lib/postgresql/15/bin/pg_config) pg_config)
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

# The just-in-time bitcode of an extension written in C++ would only repeat what pgwarp.so has.
override with_llvm := no

# Server headers as system headers: their inline functions are not written for -Wextra.
PG_CPPFLAGS = -I$(CURDIR) -isystem $(shell $(PG_CONFIG) --includedir-server)
PG_CXXFLAGS = -std=c++20 -Wall -Wextra -Wno-cast-function-type -fvisibility=hidden
# The serial OpenBLAS by its own path: the threaded one would start threads in the postmaster.
BLAS_DIR := $(firstword $(wildcard /usr/lib/*/openblas-serial) $(shell pkg-config --variable=libdir openblas 2>/dev/null))
SHLIB_LINK = $(KERNELS) $(if $(BLAS_DIR),-L$(BLAS_DIR) -Wl$(comma)-rpath$(comma)$(BLAS_DIR)) -lopenblas -lhwy -lstdc++ -lm
comma := ,

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)

pgwarp.so: $(KERNELS)
$(OBJS): $(wildcard extension/*.h kernels/*.h)
else
all install installcheck clean:
	@echo 'The PostgreSQL server headers are missing. "make test" installs what is needed,' >&2
	@echo 'or install postgresql-server-dev-15 and try again.' >&2
	@exit 1
endif

KERNEL_SOURCES := $(shell find kernels CMakeLists.txt -type f 2>/dev/null)
$(KERNELS): $(KERNEL_SOURCES)
	cmake -S . -B $(BUILD)/kernels -DCMAKE_BUILD_TYPE=RelWithDebInfo >$(BUILD)/cmake.log 2>&1 || { cat $(BUILD)/cmake.log; exit 1; }
	cmake --build $(BUILD)/kernels --target pgwarp_kernels -j $$(nproc)
	@touch $@
$(shell mkdir -p $(BUILD))

.PHONY: demo test
demo:
	scripts/demo
test:
	scripts/test
