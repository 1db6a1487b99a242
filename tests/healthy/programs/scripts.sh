# usage: scripts.sh naps|long_nap|tar|rsync|make SCRATCH FOLDER    (FOLDER: where this file is)
. "$3/say.sh"
cd "$2" || exit 1

fill() {
  mkdir -p from
  for number in 1 2 3 4 5 6 7 8; do head -c 2000000 /dev/urandom > "from/file$number" || exit 1; done
}

case "$1" in
naps)
  say main
  while :; do sleep 0.3; date > now; done
  ;;
long_nap)
  say main
  while :; do sleep 20; done
  ;;
tar)
  fill
  mkdir -p to
  say main
  while :; do tar cf - from | gzip -1 | tar xzf - -C to || exit 1; done
  ;;
rsync)
  fill
  say main
  while :; do rm -rf to; rsync -a from/ to || exit 1; done
  ;;
make)
  for number in 1 2 3 4 5 6 7 8 9 10 11 12; do
    {
      echo '#include <stdio.h>'
      for part in $(seq 300); do echo "int f$part(int a) { printf(\"%d\", a); return a * $part + $number; }"; done
    } > "unit$number.c"
  done
  printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\n%%.o: %%.c\n\t$(CC) -O2 -c -o $@ $<\n' > Makefile
  say main
  while :; do make -s -j3 || exit 1; rm -f ./*.o; done
  ;;
esac
