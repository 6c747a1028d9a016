#!/bin/sh
# Writes what `docker compose` needs here: .env, and a random token or password in each file of secrets/. Existing ones are
# never overwritten. Everything is for the user who runs this alone: the folder is barred to others, and within it the group
# may read, because each container reads the files as a user of its own that joins that group.
#
# The time zone in .env is that of this machine, for containers do not know it.
#
# usage: ./make-secrets.sh [--rootless]
#   --rootless   for rootless Docker or Podman, where your group is group 0 inside of a container
set -eu
umask 077

die() {
  printf 'make-secrets: %s\n' "$*" >&2
  exit 1
}

here=$(cd "$(dirname "$0")" && pwd)
group=$(id -g)
# Root may give the files to a group that is nobody's, and need not let containers into its own.
[ "$(id -u)" != 0 ] || group=10001
case "${1-}" in
  '') ;;
  --rootless) group=0 ;;
  *) die "unknown option '$1'; known: --rootless." ;;
esac
[ $# -le 1 ] || die "one option at most is expected: --rootless."

for there in "$here/.env" "$here/secrets"; do
  if [ -e "$there" ] || [ -L "$there" ]; then
    die "$there is there already, and nothing was changed. New passwords would not fit the data of a stack that has run. To begin anew: docker compose down --volumes, then remove .env and secrets/ yourself."
  fi
done

# The name of this machine's time zone: what /etc/localtime links to, or what /etc/timezone says.
zone_here() {
  for name in "$(readlink /etc/localtime | sed -n 's|.*/zoneinfo/||p')" "$(sed -n 1p /etc/timezone)"; do
    name=${name#posix/}
    name=${name#right/}
    case "$name" in
      '' | *[!A-Za-z0-9_+/-]*) ;;
      *) printf '%s\n' "$name" && return ;;
    esac
  done
  printf 'UTC\n'
}
zone=$(zone_here 2>/dev/null)

# A folder aside that is put in place when it is whole: what is interrupted leaves no half of the secrets behind.
new=$(mktemp -d "$here/.secrets.XXXXXX")
trap 'rm -rf "$new" "$here/.env.new"' EXIT
trap 'exit 1' HUP INT TERM

for name in push alert operate grafana_password influxdb_password influxdb_token; do
  # 32 random bytes, without what means something to YAML, shells or URLs.
  head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n' >"$new/$name"
  [ "$(wc -c <"$new/$name")" -ge 40 ] || die "no random bytes are to be had from /dev/urandom; nothing was changed."
  chmod 640 "$new/$name"
  [ "$group" = 0 ] || chgrp "$group" "$new/$name"
done
# For the passwords of mail, chat and pager that alertmanager.yml may name.
mkdir "$new/notify"
chmod 750 "$new/notify"
[ "$group" = 0 ] || chgrp "$group" "$new/notify"

cat >"$new/.env" <<END
# Written by make-secrets.sh; .env.example says what each is for.
SECRETS_GID=$group
PROMETHEUS_RETENTION=30d
INFLUXDB_RETENTION=90d
TZ=$zone
EXPORTER_PORT=9464
PROMETHEUS_PORT=9090
ALERTMANAGER_PORT=9093
GRAFANA_PORT=3000
INFLUXDB_PORT=8086
END
mv "$new/.env" "$here/.env.new"
mv "$new" "$here/secrets"
mv "$here/.env.new" "$here/.env"
trap - EXIT
printf 'Written: .env, and in secrets/ push, alert, operate, grafana_password, influxdb_password, influxdb_token.\n'
printf 'Time zone of nights and weekends, in which tickets wait: %s. Another one is TZ in .env.\n' "$zone"
