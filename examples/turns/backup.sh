#!/bin/sh
# Backs up each folder in $1 into an archive in $2. All begin at once, and run in turns: a customer
# is a tag, so one with much to do does not delay the others.
set -u
jobs=""
for folder in "$1"/*/; do
    customer=$(basename "$folder")
    evenkeel turn --tag "backup:$customer" -- \
        tar -C "$1" -czf "$2/$customer.tar.gz" "$customer" &
    jobs="$jobs $!"
done
status=0
for job in $jobs; do
    wait "$job" || status=1
done
exit "$status"
