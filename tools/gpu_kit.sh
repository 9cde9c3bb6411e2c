#!/bin/sh
# Puts into .gpu-kit what a machine without a network may lack for `make gpu`: the header-only
# libraries, with their CMake files, and GoogleTest's sources, which are compiled there.
#
# Takes them from Debian's packages, which ./setup.sh installs.  A few MB; git ignores it.
set -eu
cd "$(dirname "$0")/.."
kit=.gpu-kit

./setup.sh plan-only >/dev/null
for package in nlohmann-json3-dev libcli11-dev libxxhash-dev googletest; do
  dpkg -s "$package" >/dev/null 2>&1 || {
    echo "gpu-kit: the package $package is not installed: apt-get install $package" >&2
    exit 2
  }
done
rm -rf "$kit"
mkdir -p "$kit/prefix"
for package in nlohmann-json3-dev libcli11-dev libxxhash-dev; do
  dpkg -L "$package" | while read -r file; do
    case $file in
      /usr/include/* | /usr/share/cmake/* | /usr/lib/*cmake/*) ;;
      *) continue ;;
    esac
    [ -f "$file" ] || continue
    target=$kit/prefix/${file#/usr/}
    mkdir -p "$(dirname "$target")"
    cp "$file" "$target"
  done
done
cp -r /usr/src/googletest "$kit/googletest"
du -sh "$kit"
