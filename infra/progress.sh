#!/usr/bin/env bash
# Shows the progress of pip (standard input) as one line that counts up to the number of pins given.
total=$1 number=0 begin=$SECONDS
[ -t 1 ] && end=$'\033[K\r' || end=$'\n'
while IFS= read -r line; do
  case "$line" in
    Collecting\ * | Processing\ *)
      number=$((number + 1))
      name=${line#* } name=${name%% *} name=${name##*/}
      if [ -t 1 ] || [ $((number % 20)) = 0 ]; then printf '      %3d of %d packages  %s%s' "$number" "$total" "$name" "$end"; fi ;;
    Installing\ collected*) printf '      %d packages there, installing them%s' "$number" "$end" ;;
    ERROR* | *error:*) printf '%s\n' "$line" >&2 ;;
  esac
done
printf '      done in %d s\n' $((SECONDS - begin))
