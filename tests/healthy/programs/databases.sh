# usage: databases.sh postgres|pgbench|nginx|redis_load SCRATCH FOLDER PORT [BINARIES]
. "$3/say.sh"
scratch=$2 port=$4 binaries=$5
as_postgres() {
  setpriv --reuid=postgres --regid=postgres --clear-groups env HOME="$scratch/pg" "$@"
}

case "$1" in
postgres)
  mkdir -m 700 "$scratch/pg" && chown postgres:postgres "$scratch/pg" && chmod 711 "$scratch" || exit 1
  as_postgres "$binaries/initdb" -D "$scratch/pg/data" -A trust --no-sync > /dev/null || exit 1
  cd / && exec setpriv --reuid=postgres --regid=postgres --clear-groups "$binaries/postgres" \
    -D "$scratch/pg/data" -k "$scratch/pg" -c "listen_addresses=" -c "port=$port"
  ;;
pgbench)
  as_postgres "$binaries/pgbench" -q -i -s 1 -h "$scratch/pg" -p "$port" postgres || exit 1
  say load
  cd / && exec setpriv --reuid=postgres --regid=postgres --clear-groups "$binaries/pgbench" -n -T 3600 \
    -c 6 -j 2 -h "$scratch/pg" -p "$port" postgres
  ;;
nginx)
  mkdir -p "$scratch/html" && chmod 755 "$scratch" "$scratch/html" && head -c 20000 /dev/zero > "$scratch/html/index.html"
  printf '%s\n' 'daemon off; worker_processes 2;' "pid $scratch/nginx.pid; error_log $scratch/error.log;" \
    'events { worker_connections 256; }' 'http { access_log off;' \
    "client_body_temp_path $scratch/t1; proxy_temp_path $scratch/t2; fastcgi_temp_path $scratch/t3;" \
    "uwsgi_temp_path $scratch/t4; scgi_temp_path $scratch/t5;" \
    "server { listen 127.0.0.1:$port; root $scratch/html; } }" > "$scratch/nginx.conf"
  exec nginx -c "$scratch/nginx.conf" -e "$scratch/error.log"
  ;;
redis_load)
  say load
  exec redis-benchmark -p "$port" -q -l -c 8 -t set,get,lpush
  ;;
esac
