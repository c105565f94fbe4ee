# Starts the ranks of this node. The first that fails ends the others, and its exit code is the pod's.
index=${JOB_COMPLETION_INDEX:-${RANK:-0}}
NODE_RANK=$((BEDPLATE_FIRST_NODE + index))
GROUP_RANK=$NODE_RANK
WORLD_SIZE=$BEDPLATE_WORLD_SIZE
export NODE_RANK GROUP_RANK WORLD_SIZE
first=$((BEDPLATE_FIRST_RANK + index * LOCAL_WORLD_SIZE))
if [ -n "$BEDPLATE_PROLOG" ]; then sh -c "$BEDPLATE_PROLOG" || exit; fi
# A signal that is trapped ends `wait` early, so it is asked again until the process is gone.
await() {
  wait "$1"; code=$?
  while kill -0 "$1" 2>/dev/null; do wait "$1"; code=$?; done
  return $code
}
start() {
  "$@" &
  rank=$!
  trap 'kill -TERM $rank 2>/dev/null' TERM
  await $rank
  code=$?
  [ $code = 0 ] || kill -TERM $$
  exit $code
}
ranks=
trap 'for each in $ranks; do kill -TERM $each 2>/dev/null; done' TERM INT
local=0
while [ $local -lt "$LOCAL_WORLD_SIZE" ]; do
  (RANK=$((first + local)) LOCAL_RANK=$local; export RANK LOCAL_RANK; start "$@") &
  ranks="$ranks $!"
  local=$((local + 1))
done
result=0
for each in $ranks; do
  await $each
  code=$?
  case $result in 0|143) [ $code = 0 ] || result=$code ;; esac
done
if [ -n "$BEDPLATE_EPILOG" ]; then sh -c "$BEDPLATE_EPILOG"; fi
exit $result
