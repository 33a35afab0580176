# Two commands for everybody:  make demo   make test
# The plain PGXS flow:         make && make install && make installcheck
# Debian packages:             make deb
#
# extension/ is compiled by PGXS, kernels/ by CMake into a static library that pgwarp.so links.
# Where nvcc is, CMake also makes pgwarp_cuda.so, which is installed beside pgwarp.so.
#
#   PG_CONFIG=...   the PostgreSQL to build for and install into
#   CXX=clang++     another compiler, for both halves
#   CUDA=OFF        leave pgwarp_cuda.so out though nvcc is there (ON: fail where it is not)
#   JOBS=4          compilers at a time, by default as many as there are processors
#   DEBUG_INFO=-g   values of variables in debuggers, which takes a quarter longer to compile; by
#                   default (-g1) there are functions and lines, for backtraces and profiles
#   SANITIZE=address,undefined   compile for these sanitizers of the compiler; see scripts/sanitize
#   CUDA_ARCHITECTURES=90   GPUs to compile for, as CMake names them; by default all from the A100 on

BUILD ?= build

EXTENSION = pgwarp pgwarp_pgvector
MODULE_big = pgwarp
DATA = $(wildcard sql/pgwarp--*.sql sql/pgwarp_pgvector--*.sql sql/pgwarp--*.control)
DATA_built = $(BUILD)/pgwarp--0.1.0--0.2.0.sql
OBJS = $(patsubst %.cpp,%.o,$(sort $(wildcard extension/*.cpp extension/*/*.cpp)))

# Expanded at once: PGXS asks whether these are defined, not whether they are empty.
REGRESS := $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --outputdir=test --load-extension=pgwarp
ISOLATION := $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --outputdir=test/output_iso --load-extension=pgwarp

# pg_regress sets it itself from 15 on.
export PG_ABS_SRCDIR := $(CURDIR)/test

CUDA ?= AUTO
CUDA_ARCHITECTURES ?=
SANITIZE ?=
DEBUG_INFO ?= -g1
SANITIZE_FLAGS = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
JOBS ?= $(shell nproc)
# In parallel, unless the caller has said how.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(JOBS)
endif
KERNELS = $(BUILD)/kernels/libpgwarp_kernels.a
CUDA_LIBRARY = $(BUILD)/kernels/pgwarp_cuda.so
EXTRA_CLEAN = $(BUILD) $(OBJS:.o=.d) test/results test/output_iso test/regression.diffs test/regression.out

PG_CONFIG ?= $(firstword $(wildcard /usr/lib/postgresql/15/bin/pg_config) pg_config)
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

# The just-in-time bitcode of an extension written in C++ would only repeat what pgwarp.so has.
override with_llvm := no

# Server headers as system headers: their inline functions are not written for -Wextra.
PG_CPPFLAGS := -I$(CURDIR) -isystem $(shell $(PG_CONFIG) --includedir-server 2>/dev/null)
# -MMD: PGXS knows of header dependencies only where PostgreSQL itself was built with them.
PG_CXXFLAGS = -std=c++20 -Wall -Wextra -Werror=switch -fvisibility=hidden -MMD -MP $(DEBUG_INFO)
# PostgreSQL's own flags name warnings that only gcc has.
PG_CXXFLAGS += $(SANITIZE_FLAGS) $(if $(findstring clang,$(CXX)),-Wno-unknown-warning-option)
SHLIB_LINK = $(KERNELS) -lhwy_contrib -lhwy -lstdc++ -lm

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)

# PGXS would link with its C compiler.
LINK.shared = $(CXX) $(CXXFLAGS) -shared

# What was made with which settings: of the objects here, of the CPU's kernels, of the CUDA half. A file
# is written only when it differs, so that another compiler or another PostgreSQL compiles again what
# it concerns, and the same one nothing.
settings = @mkdir -p $(@D); test "$$(cat $@ 2>/dev/null)" = '$(1)' || echo '$(1)' >$@
$(BUILD)/settings: FORCE
	$(call settings,$(CXX) $(CXXFLAGS) $(shell $(PG_CONFIG) --version) in $(CURDIR))
$(BUILD)/settings-kernels: FORCE
	$(call settings,$(CXX) $(SANITIZE) $(DEBUG_INFO) in $(CURDIR))
$(BUILD)/settings-cuda: FORCE
	$(call settings,CUDA=$(CUDA) $(if $(filter-out OFF,$(CUDA)),$(CUDA_ARCHITECTURES)))

# First of all, what may be missing.
$(BUILD)/needs: $(BUILD)/settings $(BUILD)/settings-cuda
	@scripts/needs '$(PGXS)' '$(CXX)' '$(CUDA)'
	@touch $@

$(OBJS): $(BUILD)/settings | $(BUILD)/needs

# Standard headers, compiled once. Compilers take the compiled file that lies beside the header of that
# name, and the header itself where it does not suit them.
PRECOMPILED = $(BUILD)/precompiled.h
$(PRECOMPILED).gch: $(BUILD)/settings | $(BUILD)/needs
	@echo '#include "extension/precompiled.h"' >$(PRECOMPILED)
	$(CXX) $(CXXFLAGS) $(CXXFLAGS_SL) $(CPPFLAGS) -MF $(PRECOMPILED).d -MQ $@ -x c++-header -o $@ $(PRECOMPILED)
-include $(PRECOMPILED).d
$(OBJS): private CPPFLAGS += -include $(PRECOMPILED)
$(OBJS): $(PRECOMPILED).gch
-include $(OBJS:.o=.d)

# Other CUDA settings leave the CPU's kernels as they are. The old library of the CUDA half goes: with
# CUDA=OFF it would be installed.
$(BUILD)/kernels/configured: $(BUILD)/settings-kernels $(BUILD)/settings-cuda | $(BUILD)/needs
	@$(if $(filter %/settings-kernels,$?),rm -rf $(@D),rm -f $(CUDA_LIBRARY)) && mkdir -p $(@D)
	cmake -S . -B $(@D) -DCMAKE_CXX_COMPILER=$(CXX) -DPGWARP_CUDA=$(CUDA) -DPGWARP_DEBUG_INFO=$(DEBUG_INFO) $(if $(SANITIZE),-DCMAKE_CXX_FLAGS='$(SANITIZE_FLAGS)') $(if $(CUDA_ARCHITECTURES),-DCMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)",-UCMAKE_CUDA_ARCHITECTURES) >$(BUILD)/cmake.log 2>&1 || { cat $(BUILD)/cmake.log; exit 1; }
	@touch $@

# CMake knows best whether its library is out of date, so it is always asked; pgwarp.so is linked
# again only if the library is newer afterwards. CMake's make is not ours: it gets its own -j.
$(KERNELS): $(BUILD)/kernels/configured FORCE
	@env -u MAKEFLAGS -u MAKELEVEL cmake --build $(@D) --target pgwarp_all -j $(JOBS)
pgwarp.so: $(KERNELS)

# PGXS takes objects for secondary files, which are not made again for a library that is there.
pgwarp.so: $(if $(filter-out $(wildcard $(OBJS)),$(OBJS)),FORCE)

$(DATA_built): $(BUILD)/%.sql: sql/%.sql.in sql/pgwarp--0.2.0.sql sql/update.awk | $(BUILD)/needs
	awk -f sql/update.awk sql/pgwarp--0.2.0.sql $< >$@.new
	mv $@.new $@

install: install-cuda
install-cuda: all installdirs
	@if test -f $(CUDA_LIBRARY); then set -x; $(INSTALL_SHLIB) $(CUDA_LIBRARY) '$(DESTDIR)$(pkglibdir)/'; \
	else rm -f '$(DESTDIR)$(pkglibdir)/$(notdir $(CUDA_LIBRARY))'; fi
uninstall: uninstall-cuda
uninstall-cuda:
	rm -f '$(DESTDIR)$(pkglibdir)/$(notdir $(CUDA_LIBRARY))'
else
all install installcheck clean:
	@scripts/needs '$(PGXS)' '$(CXX)' '$(CUDA)'
endif

.PHONY: demo test deb install-cuda uninstall-cuda FORCE
demo:
	scripts/demo
test:
	scripts/test
deb:
	scripts/deb
