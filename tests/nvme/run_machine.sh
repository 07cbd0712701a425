#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the nvme tests in an emulated machine with four NVMe drives of unequal speed: needs no NVMe
# hardware and no KVM, takes about a minute, and ends by itself. Usage: run_machine.sh BUILD_FOLDER
# (which holds conform_tiers_device and nvme_drives). Needs apt and, to install what is absent,
# root. The kernel is kept in BUILD_FOLDER/nvme; everything else is removed.
set -eu
build=$(cd "$1" && pwd)
keep=$build/nvme
seconds=${KVT_NVME_TIMEOUT:-420}

missing=
for package in qemu-system-x86 busybox-static cpio kmod; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "test-nvme: installing$missing"
    install="apt-get install -y -qq --no-install-recommends $missing"
    $install >/dev/null || { apt-get update -qq && $install >/dev/null; }
fi

# The newest stock kernel that apt offers, unless one is here already.
mkdir -p "$keep"
version=$(ls "$keep" | sed -n 's/^linux-\(.*\)$/\1/p' | sort -V | tail -n 1)
if [ -z "$version" ]; then
    version=$(apt-cache search --names-only '^linux-image-[0-9.]+-[0-9]+-amd64$' |
        sed -n 's/^linux-image-\([^ ]*\) .*/\1/p' | sort -V | tail -n 1)
    [ -n "$version" ] || { echo "test-nvme: apt offers no linux-image" >&2; exit 1; }
    echo "test-nvme: downloading linux-image-$version"
    rm -rf "$keep/download"
    mkdir "$keep/download"
    (cd "$keep/download" && apt-get download -qq "linux-image-$version" 2>/dev/null &&
        dpkg -x linux-image-*.deb . && rm -f linux-image-*.deb)
    /sbin/depmod -b "$keep/download" "$version"
    mv "$keep/download" "$keep/linux-$version"
fi
kernel=$keep/linux-$version

work=$(mktemp -d "$keep/run.XXXXXX")
machine=
cleanup() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT INT TERM

# The guest: busybox, the test programs with their libraries, and the drivers in loading order.
root=$work/root
mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/sys" "$root/drivers" "$root/tmp"
cp /bin/busybox "$root/bin/"
ln -s busybox "$root/bin/sh"
for program in conform_tiers_device nvme_drives; do
    cp "$build/$program" "$root/bin/"
    ldd "$build/$program" | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
done
number=100
/sbin/modprobe -d "$kernel" -S "$version" --show-depends nvme |
    sed -n 's/^insmod \([^ ]*\).*/\1/p' |
    while read -r driver; do
        cp "$driver" "$root/drivers/$number-$(basename "$driver")"
        number=$((number + 1))
    done
cat >"$root/init" <<'INIT'
#!/bin/sh
busybox() { /bin/busybox "$@"; }
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
for driver in /drivers/*; do busybox insmod "$driver" 2>/dev/null; done
wait=0
while [ ! -e /dev/ng0n1 ] || [ ! -e /dev/ng1n1 ] || [ ! -e /dev/ng2n1 ] || [ ! -e /dev/ng3n1 ]; do
    wait=$((wait + 1))
    [ $wait -lt 300 ] || break
    busybox sleep 0.1
done
cd /tmp
KVT_NVME_DEVICE=/dev/ng0n1 /bin/conform_tiers_device
echo "exit code of conform_tiers_device: $?"
/bin/nvme_drives
echo "exit code of nvme_drives: $?"
busybox poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 >"$work/initrd")

# Drives of 100, 100, 200 and 400 MB/s with serial numbers kv0..kv3; the second has a bad sector.
drives=
number=0
for rate in 100 100 200 400; do
    image=$work/drive$number
    truncate -s 256M "$image"
    if [ $number -eq 1 ]; then
        file="file.driver=blkdebug,file.image.driver=file,file.image.filename=$image"
        file="$file,file.inject-error.0.event=none,file.inject-error.0.iotype=read"
        file="$file,file.inject-error.0.errno=5,file.inject-error.0.sector=2048"
    else
        file="file=$image"
    fi
    drives="$drives -drive if=none,id=d$number,format=raw,$file"
    drives="$drives,throttling.bps-total=${rate}000000"
    drives="$drives -device nvme,drive=d$number,serial=kv$number"
    number=$((number + 1))
done

echo "test-nvme: starting linux $version with four drives"
# shellcheck disable=SC2086
timeout "$seconds" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m 768M \
    -nographic -no-reboot -nodefaults -serial "file:$work/log" \
    -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1" $drives \
    2>"$work/complaints" &
machine=$!
code=0
wait "$machine" || code=$?
machine=
tr -d '\r' <"$work/log" >"$work/text"
shown='^\[\|^exit code\|^[a-z].*: \|^uring_cmd\|^ioctl\|operations were read'
grep -a "$shown" "$work/text" || cat "$work/text"
passed=$(grep -ac '^\[       OK \]' "$work/text" || true)
total=$(grep -ac '^\[ RUN      \]' "$work/text" || true)
good=$(grep -ac '^exit code of .*: 0$' "$work/text" || true)
echo "test-nvme: $passed of $total cases passed"
if [ "$code" -ne 0 ]; then
    cat "$work/complaints" >&2
    echo "test-nvme: the machine ended with code $code" >&2
    exit 1
fi
[ "$good" -eq 2 ] && [ "$passed" -eq "$total" ] && [ "$total" -gt 0 ]
