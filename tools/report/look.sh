#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# look.sh PAGE.html [HEIGHT]: pictures of a report page at 1280 and 400 pixels, PAGE-1280.png and
# PAGE-400.png beside it, for whoever changes the template. Needs chromium; exit 77 without it.
set -eu
[ $# -ge 1 ] || { echo "usage: look.sh PAGE.html [HEIGHT]" >&2; exit 2; }
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "look.sh: chromium is not installed" >&2; exit 77; }
page=$(realpath "$1")
height=${2:-4000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$page" "$work/page.html"
# The browser's own window is never narrower than 500 pixels: the page stands in a frame.
for width in 1280 400; do
    style="border:0;width:${width}px;height:${height}px"
    echo "<!doctype html><body style='margin:0'><iframe src='page.html' scrolling='no'" \
        "style='$style'></iframe>" >"$work/frame.html"
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work" \
        --window-size="$((width < 500 ? 500 : width)),$height" \
        --screenshot="${page%.html}-$width.png" "file://$work/frame.html" 2>"$work/log" ||
        { cat "$work/log" >&2; exit 1; }
    echo "${page%.html}-$width.png"
done
