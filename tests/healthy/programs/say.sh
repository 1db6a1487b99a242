# usage: . say.sh; say ROLE    (what this shell, or what it becomes by exec, is)
say() {
  printf '{"role": "%s", "pid": %d, "tid": %d}\n' "$1" $$ $$ > "$HANGS_ANNOUNCE"
}
