# What the scripts share: messages, the user the server runs as, and where things go. Sourced.
#
# root   the checkout
# build  what the compiler makes; written by whoever calls
# work   private prefix and clusters; read by the server's user. The same folder as build, unless
#        that user cannot reach it
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
build=$root/build

# A private umask of the caller's would hide the prefix from the server's user.
umask 022

# make hands its job server to sub-makes only; the rest of its flags (CXX=clang++) we pass on.
if [[ ${MAKEFLAGS-} ]]; then
    MAKEFLAGS=$(sed -E 's/--jobserver-[a-z]+=[^ ]*//g; s/(^| )-j[0-9]*//g' <<<"$MAKEFLAGS")
    export MAKEFLAGS
fi

say() { printf '%s\n' "$*"; }
complain() { printf '%s\n' "$*" >&2; }
die() {
    complain "$@"
    exit 1
}

# PostgreSQL refuses to run as root, so root steps down for everything that starts a server.
# Empty for an ordinary user, who needs no other.
server_user() {
    ((EUID == 0)) || return 0
    local name
    for name in postgres nobody; do
        if id -u "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    die 'PostgreSQL does not run as root, and there is neither a user postgres nor nobody.'
}

# Becomes a command run by the server's user. In $work: the caller's folder may be closed to it.
exec_as_server() {
    local user
    user=$(server_user)
    cd "${work:-/}" || exit
    if [[ ! $user ]]; then exec "$@"; fi
    exec setpriv --reuid="$(id -u "$user")" --regid="$(id -g "$user")" --clear-groups \
        env HOME="${work:-/}" USER="$user" LOGNAME="$user" "$@"
}
as_server() { (exec_as_server "$@"); }

# Makes a folder that belongs to the server's user alone.
server_folder() {
    mkdir -p "$1"
    if ((EUID == 0)); then chown "$(server_user):" "$1"; fi
    chmod 700 "$1"
}

# Sets work. Not at once when sourced: the server's user may be a package away.
choose_work() {
    mkdir -p "$build"
    if as_server test -r "$root/Makefile" -a -x "$build"; then
        work=$build
        return
    fi
    work=/var/tmp/pgwarp-$(cksum <<<"$root" | cut -d' ' -f1)
    mkdir -p "$work"
    # Anybody may make a folder there: use none but our own.
    [[ ! -L $work && -O $work ]] || die "$work exists and is not ours; remove it and try again."
    if [[ ! -e $work/for ]]; then
        complain "User $(server_user) cannot reach $root: the server lives in $work."
        say "$root" >"$work/for"
    fi
}

# One run at a time in a checkout. Descriptor 9 must not reach a server, which would keep the lock.
lock_checkout() {
    mkdir -p "$build"
    { : >>"$build/lock"; } 2>/dev/null ||
        die "$build was made by $(stat -c %U "$build/lock"): run this as that user, or remove it."
    exec 9>>"$build/lock"
    flock -n 9 || die "Another run is under way in $root."
}

# nvcc, as CMakeLists.txt finds it
find_nvcc() {
    PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:${CUDA_PATH:-/usr/local/cuda}/bin:/usr/local/cuda/bin \
        command -v nvcc
}

# A word before a build of which nothing is seen for long
announce_cuda() {
    if [[ ${CUDA-} != OFF ]] && find_nvcc >/dev/null; then
        say 'nvcc is here: the GPU half is compiled as well, which may take a quarter of an hour. CUDA=OFF leaves it out.'
    fi
}

# Shows the end of a log, indented, on standard error.
show_end() {
    tail -n "${2:-30}" "$1" | sed 's/^/    /' >&2
}

# The checkout as it is, to a folder that keeps what was compiled there.
copy_tree() {
    local to=$1 list
    mkdir -p "$to"
    list=$(mktemp)
    git -C "$root" ls-files --cached --others --exclude-standard | while read -r file; do
        if [[ -e $root/$file ]]; then echo "$file"; fi
    done | sort >"$list"
    # What differs gets the time of now: an object may be younger than the file that changed, and older than its copy.
    while read -r file; do
        if [[ -L $root/$file ]] || ! cmp -s "$root/$file" "$to/$file"; then echo "$file"; fi
    done <"$list" | (cd "$root" && xargs -r -d '\n' cp --no-dereference --remove-destination --preserve=mode --parents -t "$to")
    # What is no longer in the checkout; objects and build stay.
    (cd "$to" && find . -path ./build -prune -o -type f ! -name '*.o' ! -name '*.d' ! -name '*.so' -printf '%P\n') |
        sort | comm -13 "$list" - | (cd "$to" && xargs -r -d '\n' rm -f)
    rm -f "$list"
}

# The checkout as the server's user can read it: a copy where the checkout itself is out of reach.
readable_tree() {
    if [[ $work == "$build" ]]; then
        echo "$root"
        return
    fi
    rm -rf "$work/tree"
    mkdir "$work/tree"
    tar -C "$root" -cf - --exclude=./.git --exclude=./build . | tar -xf - -C "$work/tree" --no-same-owner
    chmod -R go+rX "$work/tree"
    echo "$work/tree"
}
